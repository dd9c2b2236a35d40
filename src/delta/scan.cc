#include "delta/scan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "delta/scan_kernel.h"

namespace weightcast::delta {
namespace {

const ScanKernels* KernelsOf(ScanKernel kernel) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
                    __builtin_cpu_supports("bmi");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (kernel == ScanKernel::kAvx2) return avx2 ? &kScanAvx2 : nullptr;
  if (kernel == ScanKernel::kAvx512) return avx512 ? &kScanAvx512 : nullptr;
#endif
  return kernel == ScanKernel::kPortable ? &kScanPortable : nullptr;
}

const ScanKernels* BestKernels() {
  for (const ScanKernel kernel : {ScanKernel::kAvx512, ScanKernel::kAvx2}) {
    if (const ScanKernels* kernels = KernelsOf(kernel)) return kernels;
  }
  return &kScanPortable;
}

std::atomic<const ScanKernels*>& CurrentKernels() {
  static std::atomic<const ScanKernels*> current{BestKernels()};
  return current;
}

const ScanKernels& Kernels() { return *CurrentKernels().load(std::memory_order_relaxed); }

size_t WidthIndex(size_t unit_bytes) {
  return unit_bytes == 1 ? 0 : unit_bytes == 2 ? 1 : unit_bytes == 4 ? 2 : 3;
}

constexpr size_t kGroupBytesMax = size_t{64} * 8;

// The last units of a chunk, padded with zeros to a whole group.
struct LastGroup {
  alignas(64) std::array<uint8_t, kGroupBytesMax> bytes{};
  explicit LastGroup(ByteSpan rest) { CopyBytes(rest, bytes); }
};

}  // namespace

OctaveClasses::OctaveClasses(const ClassTable& table) {
  for (size_t c = 0; c < table.classes; ++c) {
    const bool last = c + 1 == table.classes;
    const uint32_t end = last ? table.format.octaves : table.first_octave[c + 1];
    std::fill(class_of_octave_.begin() + table.first_octave[c], class_of_octave_.begin() + end,
              static_cast<uint8_t>(c));
  }
}

ScanTable::ScanTable(const ClassTable& table) : class_of(table) {
  const UnitFormat& format = table.format;
  std::ranges::fill(limits.limit,
                    static_cast<int64_t>(~uint64_t{0} >> (64 - 8 * format.bytes + 1)));
  limits.limit[0] = -1;
  for (size_t c = 1; c < table.classes; ++c) {
    limits.limit[c] = (int64_t{table.first_octave[c]} << format.mantissa_bits) - 1;
  }
  limits.mantissa_bits = format.mantissa_bits;
  limits.class_of_octave = class_of.data();
}

bool ForceScanKernel(ScanKernel kernel) {
  const ScanKernels* kernels = KernelsOf(kernel);
  if (kernels != nullptr) CurrentKernels().store(kernels);
  return kernels != nullptr;
}

size_t DiffUnits(size_t unit_bytes, ByteSpan base, ByteSpan next, std::span<uint64_t> mask) {
  const auto diff = Kernels().diff[WidthIndex(unit_bytes)];
  const size_t groups = base.size() / (64 * unit_bytes);
  size_t changed = diff(base.data(), next.data(), groups, mask.data());
  const size_t done = groups * 64 * unit_bytes;
  if (done < base.size()) {
    const LastGroup last_base(base.subspan(done));
    const LastGroup last_next(next.subspan(done));
    changed += diff(last_base.bytes.data(), last_next.bytes.data(), 1, &mask[groups]);
  }
  return changed;
}

void RankUnits(const ClassTable& table, ByteSpan base, std::span<const uint64_t> mask,
               uint32_t* ranks) {
  if (table.classes == 1) {
    for (size_t w = 0; w < mask.size(); ++w) {
      for (uint64_t left = mask[w]; left != 0; left &= left - 1) {
        *ranks++ = static_cast<uint32_t>(64 * w) + static_cast<uint32_t>(std::countr_zero(left));
      }
    }
    return;
  }
  const ScanTable scan(table);
  const auto rank = Kernels().rank[WidthIndex(table.format.bytes)];
  const size_t groups = base.size() / (64 * table.format.bytes);
  uint32_t seen[kClassesMax] = {};
  ranks = rank(scan.limits, base.data(), groups, mask.data(), seen, ranks);
  const size_t done = groups * 64 * table.format.bytes;
  if (done < base.size()) {
    const LastGroup last(base.subspan(done));
    rank(scan.limits, last.bytes.data(), 1, &mask[groups], seen, ranks);
  }
}

UnitSelector::UnitSelector(const ClassTable& table,
                           const std::array<const uint32_t*, kClassesMax>& ranks)
    : table_(table), scan_(table) {
  for (size_t c = 0; c < kClassesMax; ++c) ranks_[c] = c < table.classes ? ranks[c] : &kNoRank;
}

// Ranks in the only class there is: positions.
size_t UnitSelector::NextPositions(size_t units, std::span<uint64_t> mask) {
  std::ranges::fill(mask, 0);
  size_t found = 0;
  for (; *ranks_[0] - seen_[0] < units; ++ranks_[0], ++found) {
    const uint32_t at = *ranks_[0] - seen_[0];
    mask[at / 64] |= uint64_t{1} << (at % 64);
  }
  seen_[0] += static_cast<uint32_t>(units);
  return found;
}

size_t UnitSelector::Next(ByteSpan base, std::span<uint64_t> mask, MutableByteSpan next) {
  const size_t units = base.size() / table_.format.bytes;
  if (table_.classes == 1) {
    CopyBytes(base, next);
    return NextPositions(units, mask);
  }
  const auto select = Kernels().select[WidthIndex(table_.format.bytes)];
  const size_t groups = units / 64;
  SelectState state{ranks_.data(), seen_.data()};
  size_t found = select(scan_.limits, base.data(), groups, state, mask.data(), next.data());
  const size_t done = groups * 64 * table_.format.bytes;
  if (done < base.size()) {
    const LastGroup last(base.subspan(done));
    std::array<uint8_t, kGroupBytesMax> restored;
    uint64_t bits = 0;
    select(scan_.limits, last.bytes.data(), 1, state, &bits, restored.data());
    mask[groups] = bits & ((uint64_t{1} << units % 64) - 1);  // what fell into the padding is lost
    found += static_cast<size_t>(std::popcount(mask[groups]));
    std::copy_n(restored.begin(), base.size() - done, next.begin() + static_cast<int64_t>(done));
  }
  return found;
}

}  // namespace weightcast::delta
