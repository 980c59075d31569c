#include "butterfly/model/format/gguf/gguf_tensor_types.h"

#include <fmt/ranges.h>

#include <string_view>
#include <vector>

namespace butterfly {
namespace {

// Types without a DType are listed so that a file that has them can be checked and named.
constexpr GgufTensorType kTensorTypes[] = {
    {0, "F32", 1, 4, DType::kF32},
    {1, "F16", 1, 2, DType::kF16},
    {2, "Q4_0", 32, 18, DType::kQ4_0},
    {3, "Q4_1", 32, 20, DType::kQ4_1},
    {6, "Q5_0", 32, 22, DType::kQ5_0},
    {7, "Q5_1", 32, 24, DType::kQ5_1},
    {8, "Q8_0", 32, 34, DType::kQ8_0},
    {10, "Q2_K", 256, 84, DType::kQ2_K},
    {11, "Q3_K", 256, 110, DType::kQ3_K},
    {12, "Q4_K", 256, 144, DType::kQ4_K},
    {13, "Q5_K", 256, 176, DType::kQ5_K},
    {14, "Q6_K", 256, 210, DType::kQ6_K},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, DType::kIQ4_NL},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, DType::kIQ4_XS},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {30, "BF16", 1, 2, DType::kBF16},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, DType::kMXFP4},
};

}  // namespace

const GgufTensorType* find_gguf_tensor_type(std::uint32_t number) {
  for (const GgufTensorType& info : kTensorTypes) {
    if (info.number == number) return &info;
  }
  return nullptr;
}

std::string computable_gguf_types() {
  std::vector<std::string_view> names;
  for (const GgufTensorType& info : kTensorTypes) {
    if (info.type) names.emplace_back(info.name);
  }
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

std::uint32_t gguf_tensor_type(DType type) {
  if (type == DType::kI32) return 26;
  if (type == DType::kInt8) type = DType::kQ8_0;
  for (const GgufTensorType& info : kTensorTypes) {
    if (info.type == type) return info.number;
  }
  return 0;
}

}  // namespace butterfly
