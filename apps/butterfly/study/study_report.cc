// butterfly study report: the report of recordings that are there.
#include <cstdio>
#include <memory>

#include "study/study.h"
#include "study/study_tensorboard.h"

namespace butterfly::app {
namespace {

struct ReportCommand {
  std::string folder, tensorboard;
  int warmup = -1, measure = -1;
  LinkSpeed links;
  bool json = false;
};

Result<int> run_report(const ReportCommand& command) {
  BF_ASSIGN_OR_RETURN(const StudyFolder read,
                      read_study(command.folder, command.warmup, command.measure, command.links));
  BF_ASSIGN_OR_RETURN(const std::string text, make_study_report(command.folder, read, command.json));
  if (!command.tensorboard.empty()) BF_TRY(write_tensorboard(command.tensorboard, read));
  std::printf("%s", text.c_str());
  return kExitOk;
}

}  // namespace

void add_study_report(Command study, Action& action) {
  auto sub = study.add_subcommand("report", "Write the report of recordings again");
  auto command = std::make_shared<ReportCommand>();
  sub.add_option("folder", command->folder, "Of study run (-o), or any with *.bftrace").required();
  sub.add_option("--warmup", command->warmup, "Steps of each kind that are dropped at the beginning [as it was run]")
      .in_range(0, 1 << 30);
  sub.add_option("--measure", command->measure, "Steps of each kind that are measured after them [as it was run]")
      .in_range(1, 1 << 30);
  sub.add_option("--latency-us", command->links.latency_us,
                 "Of links between ranks, for estimates [10 on one machine, else 50]")
      .in_range(1e-6, 1e9);
  sub.add_option("--gbit-per-s", command->links.gbit_per_s,
                 "Of links between ranks, for estimates [half of the memory's on one machine, else 8]")
      .in_range(1e-6, 1e6);
  sub.add_option("--tensorboard", command->tensorboard,
                 "Also write the report's numbers as scalars of TensorBoard into this folder");
  sub.add_flag("--json", command->json, "The report as JSON (docs/formats/study.schema.json)");
  sub.footer(
      "Recordings are also made without study: BUTTERFLY_RECORD=FOLDER butterfly ... writes them there.\n"
      "Exit codes: 0 done, 2 no recording, or none that can be read.");
  run_later(sub, action, [command] { return run_report(*command); });
}

}  // namespace butterfly::app
