#include "butterfly/kernel/training/training_dispatch.h"

#include "butterfly/base/check.h"

namespace butterfly {

const TrainingKernels& training_kernels(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceTrainingKernels;
#ifdef __x86_64__
    case Isa::kAvx2:
      return kAvx2TrainingKernels;
    case Isa::kAvx512:
    case Isa::kAmx:
      return kAvx512TrainingKernels;
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "no training kernels were built for this instruction set");
}

}  // namespace butterfly
