// Instruction sets that kernels exist for, as values: detected, listed, forced by BUTTERFLY_ISA. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

/// Ascending speed. kReference is portable C++ and defines the bits of every operation.
enum class Isa : std::uint8_t { kReference, kAvx2, kAvx512, kAmx };

inline constexpr std::array kAllIsas{Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

/// "reference", "avx2" (AVX2, FMA, F16C), "avx512" (F, BW, DQ, VL, VNNI), "amx" (that, and tiles of int8 and bf16).
std::string_view to_string(Isa isa);

/// The inverse of to_string. Errors: kInvalidArgument naming the known ones.
Result<Isa> parse_isa(std::string_view name);

/// What this CPU and its operating system support, ascending; never empty.
const std::vector<Isa>& supported_isas();

/// BUTTERFLY_ISA when set, else the fastest supported. Errors: unknown name, or not supported here.
Result<Isa> choose_isa();

}  // namespace butterfly
