#include "butterfly/tensor/tensor.h"

#include <fmt/ranges.h>

#include <cstring>
#include <limits>

namespace butterfly {
namespace {

/// dense_bytes with the reason why not.
Result<std::uint64_t> checked_bytes(DType type, const Shape& shape) {
  const auto bytes = dense_bytes(type, shape);
  if (!bytes) {
    return make_error(ErrorCode::kInvalidArgument, "no tensor of {} can have the shape {}", to_string(type),
                      to_string(shape));
  }
  return *bytes;
}

std::uintptr_t element_alignment(DType type) {
  return block_elements(type) > 1 ? alignof(BlockQ8_0) : static_cast<std::uintptr_t>(block_bytes(type));
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

std::optional<std::int64_t> element_count(const Shape& shape) {
  if (shape.rank() == 0) return std::nullopt;
  // Zero counts only once every other dimension fits, so that no slice or reshape can overflow either.
  std::int64_t product = 1;
  bool empty = false;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < 0) return std::nullopt;
    if (shape[i] == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, shape[i], &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

std::optional<std::uint64_t> dense_bytes(DType type, const Shape& shape) {
  const auto elements = element_count(shape);
  if (!elements) return std::nullopt;
  const std::int64_t last = shape[shape.rank() - 1];
  if (!row_bytes(type, static_cast<std::uint64_t>(last))) return std::nullopt;
  std::uint64_t bytes = static_cast<std::uint64_t>(block_bytes(type));
  for (int i = 0; i < shape.rank(); ++i) {
    const std::int64_t steps = i + 1 < shape.rank() ? shape[i] : last / block_elements(type);
    // Strides are signed.
    if (steps != 0 && (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(steps), &bytes) ||
                       bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))) {
      return std::nullopt;
    }
  }
  return *elements == 0 ? 0 : bytes;
}

namespace detail {

Layout Layout::dense(DType type, const Shape& shape) {
  BF_CHECK(dense_bytes(type, shape).has_value(), "a shape that no tensor of this type can have");
  Layout layout{.dtype = type, .shape = shape, .strides = {}};
  std::int64_t stride = block_bytes(type);
  for (int i = shape.rank() - 1; i >= 0; --i) {
    layout.strides[static_cast<std::size_t>(i)] = stride;
    stride *= i == shape.rank() - 1 ? shape[i] / block_elements(type) : shape[i];
  }
  return layout;
}

bool Layout::is_contiguous() const {
  std::int64_t expected = static_cast<std::int64_t>(row_size());
  if (size_bytes() == 0) return true;
  for (int i = shape.rank() - 2; i >= 0; --i) {
    // A dimension of one index is never stepped over, whatever its stride.
    if (shape[i] != 1 && strides[static_cast<std::size_t>(i)] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::int64_t Layout::rows() const {
  std::int64_t product = shape.rank() == 0 ? 0 : 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) product *= shape[i];
  return product;
}

std::uint64_t Layout::row_size() const {
  if (shape.rank() == 0) return 0;
  return static_cast<std::uint64_t>(shape[shape.rank() - 1] / block_elements(dtype) * block_bytes(dtype));
}

std::int64_t Layout::row_offset(std::int64_t i) const {
  BF_CHECK(i >= 0 && i < rows(), "no such row");
  std::int64_t offset = 0;
  for (int d = shape.rank() - 2; d >= 0; --d) {
    offset += i % shape[d] * strides[static_cast<std::size_t>(d)];
    i /= shape[d];
  }
  return offset;
}

std::uint64_t Layout::size_bytes() const {
  return static_cast<std::uint64_t>(rows()) * row_size();
}

std::int64_t Layout::slice(int dim, std::int64_t begin, std::int64_t end) {
  BF_CHECK(dim >= 0 && dim < shape.rank(), "no such dimension");
  BF_CHECK(0 <= begin && begin <= end && end <= shape[dim], "a slice outside of its dimension");
  const int block = dim == shape.rank() - 1 ? block_elements(dtype) : 1;
  BF_CHECK(begin % block == 0 && end % block == 0, "a slice cuts through a quantised block");
  shape.set(dim, end - begin);
  return begin / block * strides[static_cast<std::size_t>(dim)];
}

void Layout::reshape(const Shape& to) {
  BF_CHECK(is_contiguous(), "a strided tensor cannot be reshaped");
  BF_CHECK(element_count(to) == element_count(shape), "a reshape changes the number of elements");
  *this = dense(dtype, to);
}

}  // namespace detail

Result<Tensor> Tensor::allocate(Pool& pool, DType type, const Shape& shape) {
  BF_ASSIGN_OR_RETURN(const std::uint64_t bytes, checked_bytes(type, shape));
  BF_ASSIGN_OR_RETURN(Storage storage, pool.allocate(bytes));
  std::byte* data = storage.bytes.data();
  return Tensor(std::move(storage.owner), data, detail::Layout::dense(type, shape));
}

Result<Tensor> Tensor::adopt(std::shared_ptr<void> owner, MutableByteSpan bytes, DType type, const Shape& shape) {
  BF_ASSIGN_OR_RETURN(const std::uint64_t needed, checked_bytes(type, shape));
  if (bytes.size() < needed) {
    return make_error(ErrorCode::kInvalidArgument, "a {} tensor of shape {} needs {} bytes, {} were given",
                      to_string(type), to_string(shape), needed, bytes.size());
  }
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % element_alignment(type) != 0) {
    return make_error(ErrorCode::kInvalidArgument, "{} elements are aligned to {} bytes, the memory is not",
                      to_string(type), element_alignment(type));
  }
  return Tensor(std::move(owner), bytes.data(), detail::Layout::dense(type, shape));
}

Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t end) const {
  Tensor result = *this;
  result.data_ += result.layout_.slice(dim, begin, end);
  return result;
}

Tensor Tensor::reshape(const Shape& to) const {
  Tensor result = *this;
  result.layout_.reshape(to);
  return result;
}

void copy_elements(TensorView from, MutableTensorView to) {
  BF_CHECK(from.dtype() == to.dtype() && from.shape() == to.shape(), "a copy between unlike tensors");
  if (from.size_bytes() == 0) return;
  if (from.is_contiguous() && to.is_contiguous()) {
    std::memcpy(to.data(), from.data(), static_cast<std::size_t>(from.size_bytes()));
    return;
  }
  for (std::int64_t i = 0; i < from.rows(); ++i) {
    const ByteSpan row = from.row_bytes(i);
    std::memcpy(to.row_bytes(i).data(), row.data(), row.size());
  }
}

Result<Tensor> deep_copy(TensorView from, Pool& pool) {
  BF_ASSIGN_OR_RETURN(Tensor copy, Tensor::allocate(pool, from.dtype(), from.shape()));
  copy_elements(from, copy.mutable_view());
  return copy;
}

}  // namespace butterfly
