#include "butterfly/kernel/inference/dispatch.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "butterfly/base/check.h"
#include "butterfly/base/log.h"
#include "butterfly/kernel/inference/self_check.h"

namespace butterfly {
namespace {

#ifdef __x86_64__
const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels table = kAvx512Kernels;
    table.name = "amx";
    table.linear = linear_amx;
    return table;
  }();
  return kernels;
}
#endif

}  // namespace

const Kernels& unchecked_kernels(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceKernels;
#ifdef __x86_64__
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAmx:
      return amx_kernels();
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "no kernels were built for this instruction set");
}

Isa agreeing_isa(Isa isa, const std::function<std::string_view(Isa)>& difference) {
  const std::vector<Isa>& isas = supported_isas();
  for (auto at = std::find(isas.begin(), isas.end(), isa); at != isas.begin() && at != isas.end(); --at) {
    const std::string_view what = difference(*at);
    if (what.empty()) return *at;
    log().warn("{} of {} differs from the reference on this machine: {} is used instead", what, to_string(*at),
               to_string(*(at - 1)));
  }
  return Isa::kReference;
}

const Kernels& kernels_for(Isa isa) {
  static std::array<std::once_flag, kAllIsas.size()> once;
  static std::array<const Kernels*, kAllIsas.size()> chosen;
  const auto index = static_cast<std::size_t>(isa);
  std::call_once(once[index], [&] {
    chosen[index] = &unchecked_kernels(
        agreeing_isa(isa, [](Isa each) { return first_difference(unchecked_kernels(each), kReferenceKernels); }));
  });
  return *chosen[index];
}

}  // namespace butterfly
