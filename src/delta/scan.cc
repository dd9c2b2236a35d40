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
  switch (kernel) {
    case ScanKernel::kPortable:
      return &kScanPortable;
    case ScanKernel::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") &&
                     __builtin_cpu_supports("bmi")
                 ? &kScanAvx2
                 : nullptr;
    case ScanKernel::kAvx512:
      return KernelsOf(ScanKernel::kAvx2) != nullptr && __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
                 ? &kScanAvx512
                 : nullptr;
  }
  return nullptr;
#else
  return kernel == ScanKernel::kPortable ? &kScanPortable : nullptr;
#endif
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

size_t WidthIndex(size_t unit_bytes) { return static_cast<size_t>(std::countr_zero(unit_bytes)); }

// The table as the kernels want it.
struct ScanTable {
  std::array<uint8_t, kOctavesMax> class_of_octave;
  ScanLimits limits;

  explicit ScanTable(const ClassTable& table) {
    const UnitFormat& format = table.format;
    const auto most = static_cast<int64_t>(~uint64_t{0} >> (64 - 8 * format.bytes + 1));
    std::ranges::fill(limits.limit, most);
    limits.limit[0] = -1;
    for (size_t c = 1; c < table.classes; ++c) {
      limits.limit[c] = (int64_t{table.first_octave[c]} << format.mantissa_bits) - 1;
    }
    for (size_t c = 0; c < table.classes; ++c) {
      const uint32_t end = c + 1 < table.classes ? table.first_octave[c + 1] : format.octaves;
      std::fill(class_of_octave.begin() + table.first_octave[c], class_of_octave.begin() + end,
                static_cast<uint8_t>(c));
    }
    limits.mantissa_bits = format.mantissa_bits;
    limits.class_of_octave = class_of_octave.data();
  }
};

// The last units of a chunk, padded with zeros to a whole group.
struct LastGroup {
  alignas(64) std::array<uint8_t, 64 * 8> bytes{};
  explicit LastGroup(ByteSpan rest) { std::ranges::copy(rest, bytes.begin()); }
};

// Ranks in the only class there is: positions.
size_t SelectPositions(const uint32_t* ranks, size_t units, std::span<uint64_t> mask) {
  std::ranges::fill(mask, 0);
  size_t found = 0;
  for (; *ranks < units; ++ranks, ++found) mask[*ranks / 64] |= uint64_t{1} << (*ranks % 64);
  return found;
}

}  // namespace

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

size_t SelectUnits(const ClassTable& table, ByteSpan base,
                   const std::array<const uint32_t*, kClassesMax>& ranks, std::span<uint64_t> mask,
                   MutableByteSpan next) {
  const size_t units = base.size() / table.format.bytes;
  if (table.classes == 1) {
    std::ranges::copy(base, next.begin());
    return SelectPositions(ranks[0], units, mask);
  }
  const ScanTable scan(table);
  SelectState state{};
  for (size_t c = 0; c < kClassesMax; ++c) state.rank[c] = c < table.classes ? ranks[c] : &kNoRank;
  const auto select = Kernels().select[WidthIndex(table.format.bytes)];
  const size_t groups = units / 64;
  size_t found = select(scan.limits, base.data(), groups, state, mask.data(), next.data());
  const size_t done = groups * 64 * table.format.bytes;
  if (done < base.size()) {
    const LastGroup last(base.subspan(done));
    std::array<uint8_t, 64 * 8> restored;
    uint64_t bits = 0;
    select(scan.limits, last.bytes.data(), 1, state, &bits, restored.data());
    mask[groups] = bits & ((uint64_t{1} << units % 64) - 1);  // what fell into the padding is lost
    found += static_cast<size_t>(std::popcount(mask[groups]));
    std::copy_n(restored.begin(), base.size() - done, next.begin() + static_cast<int64_t>(done));
  }
  return found;
}

}  // namespace weightcast::delta
