#include "butterfly/mpi/mpi_world.h"

namespace butterfly {

Result<std::unique_ptr<MpiWorld>> MpiWorld::open(const MpiOptions& /*options*/) {
  return make_error(ErrorCode::kUnsupported, "this build has no MPI: install libopenmpi-dev and configure again");
}

}  // namespace butterfly
