#include "layout/gather.h"

#include <algorithm>
#include <cstring>

namespace weightcast::layout {
namespace {

// A rows x cols matrix of units, somewhere in a buffer. Strides are in bytes.
template <typename Byte>
struct View {
  Byte* at;
  int64_t row_stride;
  int64_t col_stride;
};
using From = View<const uint8_t>;
using To = View<uint8_t>;

// 16 x 16 units: source and target lines of a block stay in L1 when one side runs down its columns.
constexpr int64_t kBlock = 16;

template <typename In, typename Out, typename Map>
void CopyMapped(From from, To to, int64_t rows, int64_t cols, Map map) {
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = std::min(rows, r0 + kBlock);
    for (int64_t c0 = 0; c0 < cols; c0 += kBlock) {
      const int64_t c1 = std::min(cols, c0 + kBlock);
      for (int64_t r = r0; r < r1; ++r) {
        const uint8_t* in = from.at + r * from.row_stride + c0 * from.col_stride;
        uint8_t* out = to.at + r * to.row_stride + c0 * to.col_stride;
        for (int64_t c = c0; c < c1; ++c, in += from.col_stride, out += to.col_stride) {
          StoreLe<Out>(out, map(LoadLe<In>(in)));
        }
      }
    }
  }
}

template <typename T>
void CopyStrided(From from, To to, int64_t rows, int64_t cols) {
  CopyMapped<T, T>(from, to, rows, cols, [](T value) { return value; });
}

void CopyUnits(From from, To to, int64_t rows, int64_t cols, int64_t unit_bytes) {
  if (rows == 0 || cols == 0) return;
  if (cols == 1) from.col_stride = to.col_stride = unit_bytes;
  if (from.col_stride == unit_bytes && to.col_stride == unit_bytes) {
    int64_t run = cols * unit_bytes;
    if (from.row_stride == run && to.row_stride == run) {
      run *= rows;
      rows = 1;
    }
    if (run >= 32) {  // shorter runs: the loop below beats a call each
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(to.at + r * to.row_stride, from.at + r * from.row_stride,
                    static_cast<size_t>(run));
      }
      return;
    }
    cols = run / unit_bytes;
  }
  switch (unit_bytes) {
    case 1:
      return CopyStrided<uint8_t>(from, to, rows, cols);
    case 2:
      return CopyStrided<uint16_t>(from, to, rows, cols);
    case 4:
      return CopyStrided<uint32_t>(from, to, rows, cols);
    default:
      return CopyStrided<uint64_t>(from, to, rows, cols);
  }
}

float WidenBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Nearest, ties to even; a NaN stays a NaN.
uint16_t NarrowToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void CopyFragment(ValueMap map, From from, To to, int64_t rows, int64_t cols, int64_t unit_bytes) {
  switch (map) {
    case ValueMap::kCopy:
      return CopyUnits(from, to, rows, cols, unit_bytes);
    case ValueMap::kAddOneBf16:
      return CopyMapped<uint16_t, uint16_t>(
          from, to, rows, cols, [](uint16_t w) { return NarrowToBf16(WidenBf16(w) + 1.0F); });
    case ValueMap::kWidenToF32:
      return CopyMapped<uint16_t, uint32_t>(from, to, rows, cols, [](uint16_t w) {
        return static_cast<uint32_t>(w) << 16;  // as bits: NaN payloads pass
      });
  }
}

// Units of `box` inside a buffer that holds the units of `frame` row by row.
template <typename Byte>
View<Byte> InFrame(const Box& box, const Box& frame, int64_t unit_bytes, Byte* bytes) {
  WC_CHECK(frame.row_step == 1 && frame.col_step == 1);
  return {bytes + ((box.row - frame.row) * frame.cols + box.col - frame.col) * unit_bytes,
          box.row_step * frame.cols * unit_bytes, box.col_step * unit_bytes};
}

template <typename Byte>
View<Byte> Packed(const Box& box, int64_t unit_bytes, Byte* bytes) {
  return {bytes, box.cols * unit_bytes, unit_bytes};
}

void CheckFrame(const tensor::Matrix& matrix, const Box& box, size_t packed, const Box& frame,
                size_t frame_bytes) {
  WC_CHECK(static_cast<int64_t>(packed) == box.units() * matrix.unit_bytes);
  WC_CHECK(static_cast<int64_t>(frame_bytes) == frame.units() * matrix.unit_bytes);
  WC_CHECK(box.units() == 0 || (box.row >= frame.row && box.col >= frame.col &&
                                box.row + (box.rows - 1) * box.row_step < frame.row + frame.rows &&
                                box.col + (box.cols - 1) * box.col_step < frame.col + frame.cols));
}

// Bytes of a parameter from a fragment's first unit on, proven to reach its last.
ByteSpan FromFirstUnit(const Fragment& f, int64_t from_bytes, ByteSpan shard) {
  if (f.box.units() == 0) return {};
  const int64_t last = f.source + (f.box.rows - 1) * f.row_stride + (f.box.cols - 1) * f.col_stride;
  WC_CHECK((last + 1) * from_bytes <= static_cast<int64_t>(shard.size()));
  return shard.subspan(static_cast<size_t>(f.source * from_bytes));
}

// Copies fragments of shards to where `place` says that their boxes lie.
template <typename Place>
void CopyFromShards(const Fragment& f, int64_t unit_bytes, ByteSpan shard, const Place& place) {
  const int64_t from_bytes = f.map == ValueMap::kWidenToF32 ? 2 : unit_bytes;
  const From from{FromFirstUnit(f, from_bytes, shard).data(), f.row_stride * from_bytes,
                  f.col_stride * from_bytes};
  CopyFragment(f.map, from, place(f.box), f.box.rows, f.box.cols, unit_bytes);
}

bool IsOneRun(const Fragment& f) {
  return f.map == ValueMap::kCopy && (f.box.cols == 1 || f.col_stride == 1) &&
         (f.box.rows == 1 || f.row_stride == f.box.cols);
}

}  // namespace

ByteSpan GatherChunk(const tensor::TensorSpec& spec, const Chunk& chunk,
                     std::span<const ByteSpan> params, Bytes* buffer) {
  const int64_t unit_bytes = spec.matrix().unit_bytes;
  const Box& box = chunk.box;
  const auto bytes = static_cast<size_t>(box.units() * unit_bytes);
  // Fragments tile the chunk's box, so their steps are its steps.
  if (chunk.fragments.size() == 1 && IsOneRun(chunk.fragments.front())) {
    const Fragment& f = chunk.fragments.front();
    return FromFirstUnit(f, unit_bytes, params[static_cast<size_t>(f.param)]).first(bytes);
  }
  buffer->resize(bytes);
  for (const Fragment& f : chunk.fragments) {
    CopyFromShards(f, unit_bytes, params[static_cast<size_t>(f.param)], [&](const Box& part) {
      const int64_t row = (part.row - box.row) / box.row_step;
      const int64_t col = (part.col - box.col) / box.col_step;
      return To{buffer->data() + (row * box.cols + col) * unit_bytes, box.cols * unit_bytes,
                unit_bytes};
    });
  }
  return *buffer;
}

void ScatterSlice(const tensor::Matrix& matrix, const Slice& slice, ByteSpan shard,
                  MutableByteSpan canonical) {
  WC_CHECK(static_cast<int64_t>(canonical.size()) == matrix.bytes());
  const Fragment f{slice.box,        slice.param,      slice.source,
                   slice.row_stride, slice.col_stride, slice.map};
  CopyFromShards(f, matrix.unit_bytes, shard, [&](const Box& part) {
    return InFrame(part, Box::All(matrix), matrix.unit_bytes, canonical.data());
  });
}

void GatherBox(const tensor::Matrix& matrix, const Box& box, ByteSpan canonical,
               MutableByteSpan packed) {
  GatherFromFrame(matrix, box, Box::All(matrix), canonical, packed);
}

void ScatterBox(const tensor::Matrix& matrix, const Box& box, ByteSpan packed, const Box& frame,
                MutableByteSpan frame_bytes) {
  CheckFrame(matrix, box, packed.size(), frame, frame_bytes.size());
  const int64_t unit_bytes = matrix.unit_bytes;
  CopyUnits(Packed(box, unit_bytes, packed.data()),
            InFrame(box, frame, unit_bytes, frame_bytes.data()), box.rows, box.cols, unit_bytes);
}

void GatherFromFrame(const tensor::Matrix& matrix, const Box& box, const Box& frame,
                     ByteSpan frame_bytes, MutableByteSpan packed) {
  CheckFrame(matrix, box, packed.size(), frame, frame_bytes.size());
  const int64_t unit_bytes = matrix.unit_bytes;
  CopyUnits(InFrame(box, frame, unit_bytes, frame_bytes.data()),
            Packed(box, unit_bytes, packed.data()), box.rows, box.cols, unit_bytes);
}

}  // namespace weightcast::layout
