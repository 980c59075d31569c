// butterfly convert: a model, or a random one of a named shape, to a GGUF file. Progress goes to stderr.
#include "butterfly/model/format/convert.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "butterfly/base/units.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/quantize.h"
#include "commands.h"

namespace butterfly::app {
namespace {

struct ConvertCommand {
  std::vector<std::string> paths;  // IN OUT, or OUT alone with --random
  std::string random;
  std::string type;
  std::uint64_t seed = 0;
};

/// Nothing for a mix, too.
Result<std::optional<DType>> wanted_type(const ConvertCommand& command) {
  if (command.type.empty() || parse_type_mix(command.type)) return std::optional<DType>();
  const auto type = parse_dtype(command.type);
  if (!type || *type == DType::kI32) {
    return make_error(ErrorCode::kInvalidArgument, "--type is \"{}\", expected {}, {}", command.type, type_mixes(),
                      encodable_types());
  }
  return type;
}

Result<Checkpoint> open_input(const ConvertCommand& command, std::optional<DType> type) {
  if (command.random.empty()) return open_checkpoint(command.paths.front());
  BF_ASSIGN_OR_RETURN(const ModelConfig config, named_config(command.random));
  return random_checkpoint(config, {.seed = command.seed, .type = type.value_or(DType::kF16)});
}

void show_progress(const ConvertProgress& progress) {
  const double percent =
      100.0 * static_cast<double>(progress.bytes_written) / static_cast<double>(progress.bytes_total);
  std::fprintf(stderr, "\r%5.1f %% of %s  %-32s", percent, format_bytes(progress.bytes_total).c_str(),
               progress.tensor.c_str());
}

Result<ConvertReport> run_convert(const ConvertCommand& command) {
  BF_ASSIGN_OR_RETURN(const auto type, wanted_type(command));
  BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_input(command, type));
  ConvertOptions options{.type = type, .mix = parse_type_mix(command.type), .stop = interrupted()};
  const bool watched = ::isatty(STDERR_FILENO) == 1;
  if (watched) options.progress = show_progress;
  auto report = convert(checkpoint, command.paths.back(), options);
  if (watched) std::fprintf(stderr, "\r%60s\r", "");
  return report;
}

Result<int> run(const ConvertCommand& command) {
  // A file beyond the size limit is an error to report, not a signal to die of.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::size_t expected = command.random.empty() ? 2 : 1;
  if (command.paths.size() != expected) {
    return make_error(ErrorCode::kInvalidArgument, "convert takes {}, got {} paths",
                      expected == 2 ? "IN and OUT" : "--random SHAPE and OUT", command.paths.size());
  }
  BF_ASSIGN_OR_RETURN(const ConvertReport report, run_convert(command));
  if (!report.stored_as_f16.empty()) {
    const auto type = parse_dtype(command.type);
    std::fprintf(stderr, "stored as f16, because their rows are no multiple of %d elements: %s\n",
                 type ? block_elements(*type) : kQuantBlock,
                 fmt::format("{}", fmt::join(report.stored_as_f16, ", ")).c_str());
  }
  std::fprintf(stderr, "%s: %s\n", command.paths.back().c_str(), format_bytes(report.file_bytes).c_str());
  return kExitOk;
}

}  // namespace

void add_convert(Command app, Action& action) {
  auto sub = app.add_subcommand("convert", "Write a model as a GGUF file, in another storage type if wanted");
  auto command = std::make_shared<ConvertCommand>();
  sub.add_option("paths", command->paths,
                 "IN (GGUF file or Hugging Face directory) and OUT.gguf; OUT alone with --random")
      .required()
      .takes(1, 2);
  sub.add_option(
      "--type", command->type,
      encodable_types() + ", for all matrices, or a mix: " + type_mixes() + "; default: as stored, f16 for --random");
  auto random =
      sub.add_option("--random", command->random,
                     fmt::format("A shape with random weights, for benchmarks: {}", fmt::join(named_configs(), ", ")));
  sub.add_option("--seed", command->seed, "Seed of the random weights").whole_number().needs(random);
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
