// A weight matrix in the one layout that serves one row and many: panels of 16 interleaved outputs, so that a
// vector register holds 16 outputs and each output is one chain along the reduced dimension.
//   float types: panel[k][16]
//   q8_0: blocks of 32 k, each [8 quads][16 outputs][4 k] bytes holding quant + 128
//   q4_0: blocks of 32 k, each [4 quads][16 outputs][4 k] bytes, low nibble k, high nibble k + 16, holding quant + 8
//   both: after every two blocks their scales, halves [2][16] (sub_blocks_inl.h)
//   int8: the floats [16] of scales, then blocks as those of q8_0 (PackedInt8)
//   types of sub-blocks (tensor/sub_blocks.h): blocks of 32 k, each quants as those of q8_0 or q4_0 (nibbles without an
//   offset), then the floats [subs][16] of scales and, where there are some, of minima
//   types of super-blocks, whole rows of them: super-blocks, about as long as files have them (sub_blocks_inl.h)
// Other quantised types are packed as the computing type that they are re-expressed in.
// The last panel is padded with zeros. Immutable after pack(), thread-safe to read. Owns its memory, or a share of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "butterfly/base/bytes.h"
#include "butterfly/base/range.h"
#include "butterfly/base/result.h"
#include "butterfly/kernel/packed/packed_type.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/dtype.h"
#include "butterfly/trace/held.h"

namespace butterfly {

/// A matrix as files store it, or a part of one: `rows` outputs of `cols` inputs, row after row.
struct MatrixView {
  DType type = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  ByteSpan bytes;            // from the first element to the last
  std::uint64_t stride = 0;  // bytes from one row to the next; 0: rows touch

  /// A part of this, over the same bytes. Borders of columns lie between blocks of the type.
  MatrixView part(const IndexRange& of_rows, const IndexRange& of_cols) const;
};

/// How kernels call the storage of a type, or of the computing type that it is packed as.
PackedType packed_type(DType type);

/// Bytes of a row of `cols` elements as it is packed, without what pads a panel; rows that are no whole number of
/// blocks count as floats.
std::uint64_t packed_row_bytes(DType type, std::uint64_t cols);

class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Errors: kUnsupported (type), kBadData (bytes do not match the shape, an int8 row has two scales), kNoMemory.
  static Result<PackedMatrix> pack(const MatrixView& source, ThreadTeam& team);

  /// What pack() made of such a matrix before, over `packed`, which `owner` keeps alive. Nothing where these bytes are
  /// not as many as the shape needs, or not aligned to 64.
  static std::optional<PackedMatrix> over(DType stored_type, std::int64_t rows, std::int64_t cols, ByteSpan packed,
                                          std::shared_ptr<const void> owner);

  /// Bytes that pack() will take for this shape.
  static std::uint64_t packed_bytes(DType type, std::int64_t rows, std::int64_t cols);

  /// The computing type of what was packed.
  DType type() const { return type_; }
  /// The type that it was packed from.
  DType stored_type() const { return stored_type_; }
  PackedType packed_as() const { return packed_as_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t panels() const { return (rows_ + kPanel - 1) / kPanel; }
  std::int64_t panel_stride() const { return panel_stride_; }
  std::uint64_t bytes() const { return packed_.size(); }
  ByteSpan packed() const { return packed_; }
  const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(packed_.data()); }
  bool quantised() const { return block_elements(type_) > 1; }

  /// Row `row` as floats; out has cols() elements.
  void unpack_row(std::int64_t row, std::span<float> out) const;

  /// Rows and columns in type(), with the bits that pack() was given or re-expressed: row r of them begins at
  /// out[r * stride]. Borders of columns lie between blocks of the type.
  void unpack(const IndexRange& of_rows, const IndexRange& of_cols, MutableByteSpan out, std::uint64_t stride) const;

 private:
  PackedMatrix(DType stored_type, std::int64_t rows, std::int64_t cols);

  AlignedBuffer buffer_;
  std::shared_ptr<const void> owner_;  // instead of buffer_
  ByteSpan packed_;
  trace::Held held_;
  DType stored_type_ = DType::kF32;
  DType type_ = DType::kF32;
  PackedType packed_as_ = PackedType::kF32;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::int64_t panel_stride_ = 0;
};

}  // namespace butterfly
