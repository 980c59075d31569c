#include "butterfly/kernel/inference/dispatch.h"

#include "butterfly/base/check.h"

namespace butterfly {

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceKernels;
#ifdef __x86_64__
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "no kernels were built for this instruction set");
}

}  // namespace butterfly
