#include <cstdio>

#include "commands.h"
#include "train/train.h"

namespace butterfly::app {

Status take_place(const MpiWorld& world, const AccessOptions& access, RunConfig& config) {
  ParallelConfig& parallel = config.parallel;
  if (parallel.ranks != 1 && parallel.ranks != world.size()) {
    return make_error(ErrorCode::kInvalidArgument, "parallel.ranks is {}, MPI has started {}: leave parallel.ranks out",
                      parallel.ranks, world.size());
  }
  if (world.hosts() > 1 && !access.any_address) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "the ranks are on {} machines, and MPI sends in plain text: --insecure, where the network between "
        "them is trusted; --workers encrypts",
        world.hosts());
  }
  parallel.ranks = world.size();
  parallel.ranks_here = world.members_here();
  if (config.threads == 0) config.threads = world.threads();
  if (world.rank() > 0) {
    config.log = LogLevel::kSilent;
    config.log_file.clear();
    config.events_dir.clear();
    return {};
  }
  if (world.hosts() > 1) {
    std::fprintf(
        stderr,
        "WARNING: --insecure: MPI sends gradients and weights between %d machines unauthenticated and in plain "
        "text.\n",
        world.hosts());
  }
  return {};
}

Result<int> train_on_mpi(const std::function<Result<int>(MpiWorld& world)>& train) {
  BF_ASSIGN_OR_RETURN(const std::unique_ptr<MpiWorld> world, MpiWorld::open());
  const Result<int> code = train(*world);
  const Status ended = world->settle(code ? Status{} : tl::unexpected(code.error()));
  int exit_code = code.value_or(kExitBadInput);
  if (!ended) exit_code = world->speaks() ? fail(ended.error()) : kExitBadInput;
  std::fflush(nullptr);
  world->end(exit_code);
  return exit_code;
}

}  // namespace butterfly::app
