// The element types that GGUF files number, with or without a DType of ours. Thread-safe: constants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// Ours, a bool: the file's Q8_0 tensors are int8 ones.
inline constexpr const char* kGgufInt8Key = "butterfly.int8";

struct GgufTensorType {
  std::uint32_t number;
  const char* name;
  std::uint64_t block_elements, block_bytes;
  std::optional<DType> type;  // nothing where this library cannot compute with it
};

/// Null for a number that this library has never heard of.
const GgufTensorType* find_gguf_tensor_type(std::uint32_t number);

/// "F32, F16, Q4_0 and so on", for messages.
std::string computable_gguf_types();

/// The number GGUF uses for a tensor of `type`.
std::uint32_t gguf_tensor_type(DType type);

}  // namespace butterfly
