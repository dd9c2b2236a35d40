#include "tensor/digest.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "tensor/digest_kernel.h"

namespace weightcast::tensor {
namespace {

__extension__ typedef __int128 Int128;

constexpr Uint128 kPrime = (Uint128{1} << 127) - 1;

// ---- Arithmetic modulo kPrime. Every value between calls is below it.

constexpr Uint128 Reduce(Uint128 x) {
  x = (x & kPrime) + (x >> 127);
  return x >= kPrime ? x - kPrime : x;
}

constexpr Uint128 Add(Uint128 a, Uint128 b) { return Reduce(a + b); }

constexpr Uint128 Subtract(Uint128 a, Uint128 b) { return Reduce(a + kPrime - b); }

constexpr Uint128 Multiply(Uint128 a, Uint128 b) {
  const auto a0 = static_cast<uint64_t>(a);
  const auto a1 = static_cast<uint64_t>(a >> 64);
  const auto b0 = static_cast<uint64_t>(b);
  const auto b1 = static_cast<uint64_t>(b >> 64);
  const Uint128 low = Uint128{a0} * b0;
  const Uint128 middle = Uint128{a0} * b1 + Uint128{a1} * b0;  // a1, b1 < 2^63: fits
  const Uint128 low_sum = low + (middle << 64);
  const Uint128 high = Uint128{a1} * b1 + (middle >> 64) + (low_sum < low ? 1 : 0);
  return Add(Reduce(low_sum), Reduce(high << 1));  // 2^128 = 2; high < 2^126
}

Uint128 ToNumber(TensorDigest d) { return Uint128{d.high} << 64 | d.low; }
TensorDigest ToDigest(Uint128 x) {
  return {static_cast<uint64_t>(x), static_cast<uint64_t>(x >> 64)};
}

// ---- Constants: docs/formats/digest.md. They never change within format version 1.

constexpr uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr Uint128 MixPair(uint64_t x) { return (Uint128{Mix(x)} << 64 | Mix(x + 1)) & kPrime; }

constexpr uint64_t kLaneSeed = 7000;
constexpr uint64_t kBlockSeed = 0x1234567;

constexpr std::array<Uint128, kDigestLanes> kLaneKeys = {
    MixPair(kLaneSeed), MixPair(kLaneSeed + 2), MixPair(kLaneSeed + 4), MixPair(kLaneSeed + 6),
    MixPair(kLaneSeed + 8)};

// A lane of a block of changes may be negative; all are below 2^70 in magnitude.
constexpr Uint128 kLaneBias = Uint128{1} << 70;

// Sum of lane key * lane for lanes below 2^71, reduced once at the end: this is the cost of each
// block, and of each run of a narrow column slice.
constexpr Uint128 WeighLanes(const std::array<Uint128, kDigestLanes>& lanes) {
  Uint128 column[3] = {};  // of 64 bits each, with room for carries
  for (size_t l = 0; l < kDigestLanes; ++l) {
    const auto key0 = static_cast<uint64_t>(kLaneKeys[l]);
    const auto key1 = static_cast<uint64_t>(kLaneKeys[l] >> 64);
    const auto lane0 = static_cast<uint64_t>(lanes[l]);
    const auto lane1 = static_cast<uint64_t>(lanes[l] >> 64);  // below 2^7
    const Uint128 low = Uint128{key0} * lane0;
    const Uint128 middle = Uint128{key1} * lane0;
    column[0] += static_cast<uint64_t>(low);
    column[1] += (low >> 64) + static_cast<uint64_t>(middle) + Uint128{key0} * lane1;
    column[2] += (middle >> 64) + Uint128{key1} * lane1;
  }
  // 2^127 = 1: the second column's bits from 63 on wrap to the bottom, the third column counts
  // twice.
  constexpr Uint128 kLow63 = (Uint128{1} << 63) - 1;
  return Reduce(column[0] + ((column[1] & kLow63) << 64) + (column[1] >> 63) + 2 * column[2]);
}

constexpr Uint128 kBiasWeight = WeighLanes({kLaneBias, kLaneBias, kLaneBias, kLaneBias, kLaneBias});

Uint128 BlockKey(int64_t block) { return MixPair(2 * static_cast<uint64_t>(block) + kBlockSeed); }

constexpr DigestKeys MakeKeys() {
  constexpr uint64_t kWordSeed = 1000;
  DigestKeys keys{};
  for (size_t i = 0; i < kDigestKeys; ++i) {
    keys.key[i] = static_cast<uint32_t>(Mix(kWordSeed + i) >> 38);
    if (i > 0) keys.next[i - 1] = keys.key[i];
  }
  return keys;
}
constexpr DigestKeys kKeys = MakeKeys();

// ---- Kernels.

AddWords KernelOf(DigestKernel kernel) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  switch (kernel) {
    case DigestKernel::kPortable:
      return AddWordsPortable;
    case DigestKernel::kAvx2:
      return __builtin_cpu_supports("avx2") ? AddWordsAvx2 : nullptr;
    case DigestKernel::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                 ? AddWordsAvx512
                 : nullptr;
  }
  return nullptr;
#else
  return kernel == DigestKernel::kPortable ? AddWordsPortable : nullptr;
#endif
}

AddWords BestKernel() {
  for (const DigestKernel kernel : {DigestKernel::kAvx512, DigestKernel::kAvx2}) {
    if (AddWords add = KernelOf(kernel)) return add;
  }
  return AddWordsPortable;
}

std::atomic<AddWords>& CurrentKernel() {
  static std::atomic<AddWords> current{BestKernel()};
  return current;
}

// ---- Summing. Keeps the lane sums of one block and folds them into the digest when the block
// changes, so that the costly multiplication is paid once a block, not once a run.
class DigestSum {
 public:
  void AddBytes(int64_t offset, ByteSpan bytes) {
    while (!bytes.empty()) {
      const auto at = static_cast<size_t>(offset) % kDigestBlockBytes;
      const size_t n = std::min(bytes.size(), kDigestBlockBytes - at);
      Enter(offset / static_cast<int64_t>(kDigestBlockBytes));
      AddInBlock(at, bytes.first(n));
      offset += static_cast<int64_t>(n);
      bytes = bytes.subspan(n);
    }
  }

  // Adds (next - base) of the unit with this index; T is an unsigned integer of the unit's size.
  template <typename T>
  void AddUnit(int64_t unit, T base, T next) {
    if constexpr (sizeof(T) == 1) {
      AddHalf(unit / 2, (int64_t{next} - base) * (unit % 2 == 0 ? 1 : 256));
    } else {
      constexpr int kHalves = sizeof(T) / 2;
      for (int h = 0; h < kHalves; ++h) {
        const int64_t difference = int64_t{static_cast<uint16_t>(next >> (16 * h))} -
                                   static_cast<uint16_t>(base >> (16 * h));
        AddHalf(unit * kHalves + h, difference);
      }
    }
  }

  TensorDigest Finish() {
    Fold();
    return ToDigest(digest_);
  }

 private:
  void Enter(int64_t block) {
    if (block == block_) return;
    Fold();
    block_ = block;
  }

  void AddInBlock(size_t at, ByteSpan bytes) {
    if (at % 4 != 0) {
      const size_t n = std::min(4 - at % 4, bytes.size());
      AddPartOfWord(at, bytes.first(n));
      at += n;
      bytes = bytes.subspan(n);
    }
    const size_t words = bytes.size() / 4;
    if (words > 0) add_(kKeys, at / 4, bytes.data(), words, lanes_.data());
    if (bytes.size() % 4 != 0) AddPartOfWord(at + 4 * words, bytes.subspan(4 * words));
  }

  void AddPartOfWord(size_t at, ByteSpan bytes) {
    uint8_t word[4] = {};
    CopyBytes(bytes, MutableByteSpan(word).subspan(at % 4));
    AddWordsPortable(kKeys, at / 4, word, 1, lanes_.data());
  }

  // `value` of 16-bit place `half`. Low and high halves of words are summed apart, so that the sums
  // of a whole block (each place once: 2^13 bytes of < 2^16 * 2^26) stay far inside 64 bits.
  void AddHalf(int64_t half, int64_t value) {
    constexpr int64_t kBlockHalves = kDigestBlockBytes / 2;
    Enter(half / kBlockHalves);
    const uint32_t* key = kKeys.key + half % kBlockHalves / 2;
    int64_t* sums = halves_[static_cast<size_t>(half % 2)].data();
    for (size_t l = 0; l < kDigestLanes; ++l) sums[l] += value * key[8 * l];
  }

  void Fold() {
    if (block_ < 0) return;
    std::array<Uint128, kDigestLanes> biased;
    for (size_t l = 0; l < kDigestLanes; ++l) {
      biased[l] = kLaneBias + lanes_[l] + static_cast<Uint128>(Int128{halves_[0][l]}) +
                  static_cast<Uint128>(Int128{halves_[1][l]} * 65536);
    }
    const Uint128 sum = Subtract(WeighLanes(biased), kBiasWeight);
    digest_ = Add(digest_, Multiply(BlockKey(block_), sum));
    lanes_ = {};
    halves_ = {};
  }

  AddWords add_ = CurrentKernel().load(std::memory_order_relaxed);
  int64_t block_ = -1;
  std::array<Uint128, kDigestLanes> lanes_{};
  std::array<std::array<int64_t, kDigestLanes>, 2> halves_{};
  Uint128 digest_ = 0;
};

// ---- Boxes.

// A box as strides over the tensor's units, with as few and as long rows as possible.
struct Walk {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t row_stride = 0;
  int64_t cols = 0;
  int64_t col_stride = 1;
};

Walk WalkOf(const Matrix& matrix, const Box& box) {
  WC_CHECK(Inside(box, matrix));
  if (box.units() == 0) return {};
  Walk walk{box.row * matrix.cols + box.col, box.rows, box.row_step * matrix.cols, box.cols,
            box.col_step};
  if (walk.cols == 1) {
    walk = {walk.first, 1, 0, walk.rows, walk.row_stride};
  } else if (walk.row_stride == walk.cols * walk.col_stride) {
    walk = {walk.first, 1, 0, walk.rows * walk.cols, walk.col_stride};
  }
  return walk;
}

template <typename T>
T LoadUnit(ByteSpan packed, int64_t index) {
  return LoadLe<T>(packed.data() + static_cast<size_t>(index) * sizeof(T));
}

template <typename T>
void AddStrided(const Walk& walk, ByteSpan packed, DigestSum* sum) {
  int64_t at = 0;
  for (int64_t r = 0; r < walk.rows; ++r) {
    const int64_t row = walk.first + r * walk.row_stride;
    for (int64_t c = 0; c < walk.cols; ++c, ++at) {
      sum->AddUnit<T>(row + c * walk.col_stride, 0, LoadUnit<T>(packed, at));
    }
  }
}

void AddRows(const Walk& walk, int unit_bytes, ByteSpan packed, DigestSum* sum) {
  const auto row_bytes = static_cast<size_t>(walk.cols * unit_bytes);
  for (int64_t r = 0; r < walk.rows; ++r) {
    sum->AddBytes((walk.first + r * walk.row_stride) * unit_bytes,
                  packed.subspan(static_cast<size_t>(r) * row_bytes, row_bytes));
  }
}

template <typename T>
void AddChanges(const Walk& walk, ByteSpan base, ByteSpan next, std::span<const uint32_t> changed,
                DigestSum* sum) {
  int64_t row_begin = 0;  // packed index of the current row's first unit
  int64_t row_end = 0;
  int64_t row = 0;  // tensor index of it
  for (const int64_t at : changed) {
    if (at >= row_end) {
      const int64_t r = at / walk.cols;
      row_begin = r * walk.cols;
      row_end = row_begin + walk.cols;
      row = walk.first + r * walk.row_stride;
    }
    sum->AddUnit<T>(row + (at - row_begin) * walk.col_stride, LoadUnit<T>(base, at),
                    LoadUnit<T>(next, at));
  }
}

// Calls `call` with a value of the unsigned integer type of this size.
template <typename Call>
void WithUnitType(int unit_bytes, Call call) {
  switch (unit_bytes) {
    case 1:
      return call(uint8_t{});
    case 2:
      return call(uint16_t{});
    case 4:
      return call(uint32_t{});
    case 8:
      return call(uint64_t{});
    default:
      WC_CHECK(false && "unit of 1, 2, 4 or 8 bytes");
  }
}

}  // namespace

std::string TensorDigest::hex() const {
  uint8_t bytes[16];
  Store(bytes);
  std::ranges::reverse(bytes);
  return Hex(bytes);
}

void TensorDigest::Store(uint8_t* to) const {
  StoreLe(to, low);
  StoreLe(to + 8, high);
}

Result<TensorDigest> TensorDigest::Load(const uint8_t* from) {
  const TensorDigest digest{LoadLe<uint64_t>(from), LoadLe<uint64_t>(from + 8)};
  if (ToNumber(digest) >= kPrime) {
    return Error{Code::kInvalidData,
                 "tensor digest " + digest.hex() + ": expected a number below 2^127 - 1"};
  }
  return digest;
}

Result<TensorDigest> TensorDigest::ParseHex(std::string_view text) {
  uint8_t bytes[16];
  WC_TRY(weightcast::ParseHex(text, bytes).With("tensor digest"));
  std::ranges::reverse(bytes);
  return Load(bytes);
}

TensorDigest operator+(TensorDigest a, TensorDigest b) {
  return ToDigest(Add(ToNumber(a), ToNumber(b)));
}

TensorDigest operator-(TensorDigest a, TensorDigest b) {
  return ToDigest(Subtract(ToNumber(a), ToNumber(b)));
}

std::string BoxText(const Box& box) {
  const auto range = [](int64_t first, int64_t count, int64_t step) {
    std::string text = std::to_string(first) + " + " + std::to_string(count);
    if (step != 1) text += " step " + std::to_string(step);
    return text;
  };
  return "rows " + range(box.row, box.rows, box.row_step) + ", cols " +
         range(box.col, box.cols, box.col_step);
}

bool Inside(const Box& box, const Matrix& matrix) {
  if (box.row < 0 || box.rows < 0 || box.row_step < 1) return false;
  if (box.col < 0 || box.cols < 0 || box.col_step < 1) return false;
  if (box.rows == 0 || box.cols == 0) return true;
  return box.row < matrix.rows && box.rows - 1 <= (matrix.rows - 1 - box.row) / box.row_step &&
         box.col < matrix.cols && box.cols - 1 <= (matrix.cols - 1 - box.col) / box.col_step;
}

TensorDigest DigestRun(int64_t offset, ByteSpan bytes) {
  WC_CHECK(offset >= 0);
  DigestSum sum;
  sum.AddBytes(offset, bytes);
  return sum.Finish();
}

TensorDigest DigestBox(const Matrix& matrix, const Box& box, ByteSpan packed) {
  const Walk walk = WalkOf(matrix, box);
  WC_CHECK(packed.size() == static_cast<size_t>(box.units() * matrix.unit_bytes));
  DigestSum sum;
  if (walk.col_stride == 1) {
    AddRows(walk, matrix.unit_bytes, packed, &sum);
  } else {
    WithUnitType(matrix.unit_bytes,
                 [&](auto unit) { AddStrided<decltype(unit)>(walk, packed, &sum); });
  }
  return sum.Finish();
}

TensorDigest DigestChange(const Matrix& matrix, const Box& box, ByteSpan base, ByteSpan next,
                          std::span<const uint32_t> changed) {
  const Walk walk = WalkOf(matrix, box);
  WC_CHECK(base.size() == static_cast<size_t>(box.units() * matrix.unit_bytes));
  WC_CHECK(next.size() == base.size());
  WC_CHECK(changed.empty() || int64_t{changed.back()} < box.units());
  // A change costs as much as ten units of two full passes, unless the kernel is the portable one.
  constexpr int64_t kDenseOneIn = 10;
  if (std::ssize(changed) > box.units() / kDenseOneIn && walk.col_stride == 1 &&
      CurrentKernel() != AddWordsPortable) {
    return DigestBox(matrix, box, next) - DigestBox(matrix, box, base);
  }
  DigestSum sum;
  WithUnitType(matrix.unit_bytes,
               [&](auto unit) { AddChanges<decltype(unit)>(walk, base, next, changed, &sum); });
  return sum.Finish();
}

bool ForceDigestKernel(DigestKernel kernel) {
  const AddWords add = KernelOf(kernel);
  if (add == nullptr) return false;
  CurrentKernel().store(add);
  return true;
}

}  // namespace weightcast::tensor
