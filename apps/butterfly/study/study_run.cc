// butterfly study run: runs a command of this program with recording on, and reports where its time went.
#include <cstdio>
#include <memory>

#include "study/study.h"
#include "study/study_child.h"
#include "study/study_tensorboard.h"

namespace butterfly::app {
namespace {

struct RunCommand {
  std::string folder = "study", tensorboard;
  int warmup = 10, measure = 50, repeats = 1;
  bool json = false;
  std::vector<std::string> words;
};

Result<int> run_study(const RunCommand& command) {
  const std::string recordings = command.folder + "/recordings";
  StudyAbout about{.command = as_shell(command.words), .warmup = command.warmup, .measure = command.measure};
  BF_TRY(make_empty(recordings));
  for (int n = 1; n <= command.repeats; ++n) {
    std::string into = recordings;
    if (command.repeats > 1) {
      into += fmt::format("/{}", n);
      std::fprintf(stderr, "study: run %d of %d\n", n, command.repeats);
    }
    BF_TRY(make_empty(into));
    BF_ASSIGN_OR_RETURN(about.exit_code, run_recorded({.words = command.words, .recordings = into}));
    if (about.exit_code != 0) break;
  }
  BF_TRY(write_about(command.folder, about));
  auto read = read_study(command.folder, -1, -1);
  if (!read) {
    if (about.exit_code == 0) return tl::unexpected(read.error());
    return make_error(read.error().code, "{}; the command ended with status {}", read.error().message, about.exit_code);
  }
  BF_ASSIGN_OR_RETURN(const std::string text, make_study_report(command.folder, *read, command.json));
  if (!command.tensorboard.empty()) BF_TRY(write_tensorboard(command.tensorboard, *read));
  std::printf("%s", text.c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "study: the whole report is in %s (report.html, performance_summary_report.md, trace.json)\n",
               command.folder.c_str());
  return about.exit_code == kExitInterrupted ? kExitOk : about.exit_code;
}

}  // namespace

void add_study_run(Command study, Action& action) {
  auto sub = study.add_subcommand("run", "Run a command of this program and report where its time goes");
  auto command = std::make_shared<RunCommand>();
  sub.add_option("-o,--out", command->folder, "Folder for the recordings and the report").show_default();
  sub.add_option("--warmup", command->warmup,
                 "Steps of each kind that are dropped at the beginning; of fewer than twice as many, a fifth")
      .in_range(0, 1 << 30)
      .show_default();
  sub.add_option("--measure", command->measure, "Steps of each kind that are measured after them")
      .in_range(1, 1 << 30)
      .show_default();
  sub.add_option("--repeats", command->repeats,
                 "Runs of the command; with several, intervals are between runs instead of parts of one")
      .in_range(1, 100)
      .show_default();
  sub.add_option("--tensorboard", command->tensorboard,
                 "Also write the report's numbers as scalars of TensorBoard into this folder");
  sub.add_flag("--json", command->json, "The report as JSON on stdout (docs/formats/study.schema.json)");
  sub.add_option("command", command->words, "After --: any subcommand with its options").takes(1, -1);
  sub.footer(
      "What the command prints goes to stderr; stdout has the report. Ctrl-C ends the command (also serve), and the\n"
      "report of what was recorded until then follows. Workers are recorded, too, on one clock.\n"
      "Examples:\n"
      "  butterfly study run -- generate -m models/demo.gguf -p \"ROMEO:\" -n 200 --nodes 3\n"
      "  butterfly study run -o st --warmup 5 --measure 20 -- train --model tinytransformer-tiny --data "
      "synthetic:markov --steps 50\n"
      "Exit codes: 0 done, or Ctrl-C and a report; otherwise the command's, or 2 where nothing could be reported.");
  run_later(
      sub, action, [command] { return run_study(*command); }, [command] { return missing_command(command->words); });
}

}  // namespace butterfly::app
