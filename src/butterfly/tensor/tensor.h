// Tensors and views of them. A view borrows memory and knows dtype, shape and strides; a Tensor also shares ownership
// of its storage. Copying a Tensor, slicing and reshaping never copy elements; deep_copy() does. Rows, along the last
// dimension, are always dense; outer dimensions may have gaps. Indices out of range are programmer errors (BF_CHECK).
// Handles are plain values; threads that share elements must agree among themselves who writes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "butterfly/base/bytes.h"
#include "butterfly/base/check.h"
#include "butterfly/base/result.h"
#include "butterfly/tensor/dtype.h"
#include "butterfly/tensor/pool.h"

namespace butterfly {

inline constexpr int kMaxRank = 4;

/// Sizes of 1 to 4 dimensions, outermost first. May hold anything; Tensor and view creation check it.
class Shape {
 public:
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    BF_CHECK(rank_ <= kMaxRank, "a shape has at most 4 dimensions");
    int i = 0;
    for (std::int64_t dim : dims) dims_[static_cast<std::size_t>(i++)] = dim;
  }
  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const {
    BF_CHECK(i >= 0 && i < rank_, "no such dimension");
    return dims_[static_cast<std::size_t>(i)];
  }
  constexpr void set(int i, std::int64_t dim) {
    BF_CHECK(i >= 0 && i < rank_, "no such dimension");
    dims_[static_cast<std::size_t>(i)] = dim;
  }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// "[2, 3, 64]"
std::string to_string(const Shape& shape);

/// Product of the dimensions; nothing when one is negative, there are none, or the product overflows 63 bits.
std::optional<std::int64_t> element_count(const Shape& shape);

/// Bytes of a dense tensor; nothing when the last dimension is no whole number of blocks or the product overflows.
std::optional<std::uint64_t> dense_bytes(DType type, const Shape& shape);

namespace detail {

template <typename T>
constexpr bool stores(DType type) {
  using Element = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Element, float>) return type == DType::kF32;
  if constexpr (std::is_same_v<Element, std::uint16_t>) return type == DType::kF16 || type == DType::kBF16;
  if constexpr (std::is_same_v<Element, std::int32_t>) return type == DType::kI32;
  if constexpr (std::is_same_v<Element, BlockQ8_0>) return type == DType::kQ8_0;
  if constexpr (std::is_same_v<Element, BlockQ4_0>) return type == DType::kQ4_0;
  return false;
}

/// What views of either constness and tensors share: type, shape and the byte strides of all but the last dimension.
struct Layout {
  DType dtype = DType::kF32;
  Shape shape;
  std::array<std::int64_t, kMaxRank> strides{};  // bytes from one index to the next; the last one counts one block

  static Layout dense(DType type, const Shape& shape);  // shape has been checked by dense_bytes()
  bool is_contiguous() const;
  std::int64_t rows() const;
  std::uint64_t row_size() const;                 // bytes
  std::int64_t row_offset(std::int64_t i) const;  // bytes, rows counted in order over all outer dimensions
  std::uint64_t size_bytes() const;
  std::int64_t slice(int dim, std::int64_t begin, std::int64_t end);  // returns the offset of the new start in bytes
  void reshape(const Shape& to);
};

}  // namespace detail

/// Borrows elements; Byte is std::byte or const std::byte. Use the aliases below.
template <typename Byte>
class BasicTensorView {
  template <typename T>
  using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;

 public:
  BasicTensorView() = default;

  /// Dense elements at `bytes`, which must be at least dense_bytes(type, shape) long.
  BasicTensorView(std::span<Byte> bytes, DType type, const Shape& shape)
      : data_(bytes.data()), layout_(detail::Layout::dense(type, shape)) {
    BF_CHECK(bytes.size() >= layout_.size_bytes(), "a view needs more bytes than it is given");
  }
  BasicTensorView(Byte* data, const detail::Layout& layout) : data_(data), layout_(layout) {}

  /// A mutable view is also a constant one.
  template <typename Other>
    requires(std::is_const_v<Byte> && std::is_same_v<const Other, Byte> && !std::is_const_v<Other>)
  // NOLINTNEXTLINE(google-explicit-constructor): as T* converts to const T*.
  BasicTensorView(const BasicTensorView<Other>& other) : data_(other.data()), layout_(other.layout()) {}

  DType dtype() const { return layout_.dtype; }
  const Shape& shape() const { return layout_.shape; }
  int rank() const { return layout_.shape.rank(); }
  std::int64_t dim(int i) const { return layout_.shape[i]; }
  /// Bytes from one index of dimension i to the next; for the last dimension, bytes per element or block.
  std::int64_t stride_bytes(int i) const { return layout_.strides[static_cast<std::size_t>(i)]; }
  Byte* data() const { return data_; }
  const detail::Layout& layout() const { return layout_; }
  bool is_contiguous() const { return layout_.is_contiguous(); }
  std::uint64_t size_bytes() const { return layout_.size_bytes(); }

  /// Product of all dimensions but the last.
  std::int64_t rows() const { return layout_.rows(); }

  /// The bytes of row i, 0 <= i < rows().
  std::span<Byte> row_bytes(std::int64_t i) const {
    return {data_ + layout_.row_offset(i), static_cast<std::size_t>(layout_.row_size())};
  }

  /// Row i as elements, or as blocks of a quantised type. T must be what dtype() stores.
  template <typename T = float>
  std::span<Element<T>> row(std::int64_t i) const {
    BF_CHECK(detail::stores<T>(layout_.dtype), "a row is read as another type than it has");
    return {reinterpret_cast<Element<T>*>(data_ + layout_.row_offset(i)),
            static_cast<std::size_t>(layout_.row_size() / sizeof(T))};
  }

  /// Everything as one span; contiguous views only.
  template <typename T = float>
  std::span<Element<T>> values() const {
    BF_CHECK(detail::stores<T>(layout_.dtype), "a tensor is read as another type than it has");
    return {reinterpret_cast<Element<T>*>(data_), bytes().size() / sizeof(T)};
  }

  /// Everything as bytes; contiguous views only.
  std::span<Byte> bytes() const {
    BF_CHECK(is_contiguous(), "a strided tensor is no single span of bytes");
    return {data_, static_cast<std::size_t>(layout_.size_bytes())};
  }

  /// Indices [begin, end) of one dimension. In the last dimension both are multiples of block_elements(dtype()).
  BasicTensorView slice(int dim, std::int64_t begin, std::int64_t end) const {
    BasicTensorView result = *this;
    result.data_ += result.layout_.slice(dim, begin, end);
    return result;
  }

  /// The same elements in another shape; contiguous views only.
  BasicTensorView reshape(const Shape& to) const {
    BasicTensorView result = *this;
    result.layout_.reshape(to);
    return result;
  }

 private:
  Byte* data_ = nullptr;
  detail::Layout layout_;
};

using TensorView = BasicTensorView<const std::byte>;
using MutableTensorView = BasicTensorView<std::byte>;

/// Shares ownership of storage, as shared_ptr does: slices and messages on their way out live as long as they need.
class Tensor {
 public:
  Tensor() = default;

  /// Dense, 64-byte aligned, of unspecified contents. Errors: kInvalidArgument naming type and shape where a
  /// dimension is negative, missing or no whole number of blocks or the size overflows; kNoMemory.
  static Result<Tensor> allocate(Pool& pool, DType type, const Shape& shape);

  /// A tensor around memory that `owner` keeps alive. Errors: kInvalidArgument as above, and when `bytes` is
  /// shorter than the shape needs or not aligned for the type.
  static Result<Tensor> adopt(std::shared_ptr<void> owner, MutableByteSpan bytes, DType type, const Shape& shape);

  DType dtype() const { return layout_.dtype; }
  const Shape& shape() const { return layout_.shape; }
  int rank() const { return layout_.shape.rank(); }
  std::int64_t dim(int i) const { return layout_.shape[i]; }
  std::int64_t rows() const { return layout_.rows(); }
  bool is_contiguous() const { return layout_.is_contiguous(); }
  std::uint64_t size_bytes() const { return layout_.size_bytes(); }

  TensorView view() const { return {data_, layout_}; }
  MutableTensorView mutable_view() { return {data_, layout_}; }
  template <typename T = float>
  std::span<const T> row(std::int64_t i) const {
    return view().row<T>(i);
  }
  template <typename T = float>
  std::span<T> row(std::int64_t i) {
    return mutable_view().row<T>(i);
  }

  /// As the view's, sharing this tensor's storage.
  Tensor slice(int dim, std::int64_t begin, std::int64_t end) const;
  Tensor reshape(const Shape& to) const;

  /// To hand the elements over, for example to a channel: keep owner() while bytes() (contiguous only) are in use.
  const std::shared_ptr<void>& owner() const { return owner_; }
  MutableByteSpan bytes() { return mutable_view().bytes(); }
  ByteSpan bytes() const { return view().bytes(); }

 private:
  Tensor(std::shared_ptr<void> owner, std::byte* data, const detail::Layout& layout)
      : owner_(std::move(owner)), data_(data), layout_(layout) {}

  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  detail::Layout layout_;
};

/// Copies elements between views of equal dtype and shape that do not overlap; either may be strided.
void copy_elements(TensorView from, MutableTensorView to);

/// A dense tensor with its own storage and the same elements. Errors: kNoMemory.
Result<Tensor> deep_copy(TensorView from, Pool& pool);

}  // namespace butterfly
