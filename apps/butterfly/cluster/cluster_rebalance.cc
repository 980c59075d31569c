// butterfly cluster rebalance: asks a coordinator that runs for a plan by the times that it has measured.
#include <cstdio>
#include <memory>

#include "butterfly/base/text/one_line.h"
#include "butterfly/cluster/control/node_status.h"
#include "cluster/cluster.h"
#include "commands.h"
#include "shared/access.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kRebalanceMs = 20'000;  // the coordinator looks once it has computed some steps

struct RebalanceCommand {
  std::string address;
  AccessOptions access;
};

Result<int> run(const RebalanceCommand& command) {
  BF_ASSIGN_OR_RETURN(const NodeAccess access, open_access(command.access));
  BF_ASSIGN_OR_RETURN(const std::string outcome, ask_rebalance(command.address, access, after_ms(kRebalanceMs)));
  std::printf("%s\n", one_line(outcome).c_str());
  return kExitOk;
}

}  // namespace

void add_cluster_rebalance(Command cluster, Action& action) {
  auto sub = cluster.add_subcommand("rebalance", "Make a running coordinator share out the layers again, as measured");
  auto command = std::make_shared<RebalanceCommand>();
  sub.add_option("HOST:PORT", command->address, "The coordinator's --join-at; it runs with --split balanced")
      .required();
  add_access_options(sub, command->access);
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
