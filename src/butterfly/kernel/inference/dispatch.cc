#include "butterfly/kernel/inference/dispatch.h"

#include "butterfly/base/check.h"

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

const Kernels& kernels_for(Isa isa) {
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

}  // namespace butterfly
