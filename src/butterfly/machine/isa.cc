#include "butterfly/machine/isa.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace butterfly {
namespace {

#if defined(__x86_64__)
// clang 16 does not know "f16c" in __builtin_cpu_supports; CPUID leaf 1 reports it in bit 29 of ECX.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
}

/// Whether the CPU has tiles of int8 and bf16, and the system lets this process use them.
bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kAll = kBf16 | kTiles | kInt8;
  if ((edx & kAll) != kAll) return false;
  // https://docs.kernel.org/arch/x86/xstate.html: a process asks for the registers once.
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

std::vector<Isa> detect() {
  __builtin_cpu_init();
  std::vector<Isa> found{Isa::kReference};
  // __builtin_cpu_supports also asks XGETBV whether the operating system saves the registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return found;
  found.push_back(Isa::kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
    found.push_back(Isa::kAvx512);
    if (has_amx()) found.push_back(Isa::kAmx);
  }
  return found;
}
#else
std::vector<Isa> detect() {
  return {Isa::kReference};
}
#endif

template <typename Range>
std::string join_names(const Range& isas) {
  std::vector<std::string_view> names;
  for (Isa isa : isas) names.push_back(to_string(isa));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

Result<Isa> parse_isa(std::string_view name) {
  for (Isa isa : kAllIsas) {
    if (to_string(isa) == name) return isa;
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown instruction set '{}', known are {}", name,
                    join_names(kAllIsas));
}

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

Result<Isa> choose_isa() {
  const std::vector<Isa>& supported = supported_isas();
  const char* forced = std::getenv("BUTTERFLY_ISA");
  if (forced == nullptr || *forced == '\0') return supported.back();
  BF_ASSIGN_OR_RETURN(const Isa isa, parse_isa(forced));
  if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
    return make_error(ErrorCode::kUnsupported, "BUTTERFLY_ISA={} is not supported by this machine, which has {}",
                      forced, join_names(supported));
  }
  return isa;
}

}  // namespace butterfly
