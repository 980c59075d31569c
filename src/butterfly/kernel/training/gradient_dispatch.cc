#include "butterfly/kernel/training/gradient_dispatch.h"

#include "butterfly/base/check.h"

namespace butterfly {

const GradientRows& gradient_rows_for(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceGradientRows;
#ifdef __x86_64__
    case Isa::kAvx2:
      return kAvx2GradientRows;
    case Isa::kAvx512:
    case Isa::kAmx:
      return kAvx512GradientRows;
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "no loops for gradients were built for this instruction set");
}

}  // namespace butterfly
