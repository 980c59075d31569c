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
  bool pure = false;
};

/// One type for all matrices, a mix, or neither: as stored.
struct WantedTypes {
  std::optional<DType> type{};
  std::optional<TypeMix> mix{};
};

/// Some names are of both; random weights lose nothing in one type, and are made in it.
Result<WantedTypes> wanted_types(const ConvertCommand& command) {
  if (command.type.empty()) return WantedTypes{};
  const auto type = parse_dtype(command.type);
  const auto mix = parse_type_mix(command.type);
  if (type && *type != DType::kI32 && (!mix || command.pure || !command.random.empty())) return WantedTypes{type, {}};
  if (mix && !command.pure) return WantedTypes{{}, mix};
  if (command.pure) {
    return make_error(ErrorCode::kInvalidArgument, "--type is \"{}\", expected with --pure {}", command.type,
                      encodable_types());
  }
  return make_error(ErrorCode::kInvalidArgument, "--type is \"{}\", expected {}, {}", command.type, type_mixes(),
                    encodable_types());
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
  BF_ASSIGN_OR_RETURN(const WantedTypes wanted, wanted_types(command));
  BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_input(command, wanted.type));
  ConvertOptions options{.type = wanted.type, .mix = wanted.mix, .stop = interrupted()};
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
    BF_ASSIGN_OR_RETURN(const WantedTypes wanted, wanted_types(command));
    std::fprintf(stderr, "stored as f16, because their rows are no multiple of %d elements: %s\n",
                 wanted.type ? block_elements(*wanted.type) : kQuantBlock,
                 fmt::format("{}", fmt::join(report.stored_as_f16, ", ")).c_str());
  }
  std::fprintf(stderr, "%s: %s\n", command.paths.back().c_str(), format_bytes(report.file_bytes).c_str());
  if (report.error > 0) {
    std::fprintf(stderr, "rounding: %.3g %% of the weights' size (root mean square), at most %.3g %% (%s)\n",
                 100 * report.error, 100 * report.largest_error, report.largest_error_in.c_str());
  }
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
      "A mix, in which some matrices are finer: " + type_mixes() +
          "; or one type for all matrices: f32, f16, bf16, int8 (one scale for each row: the fastest with many "
          "tokens at once), q3_k, q4_k or q5_k; default: as stored, f16 for --random");
  sub.add_flag("--pure", command->pure, "That type for all matrices, also where its name is a mix's; so with --random");
  auto random =
      sub.add_option("--random", command->random,
                     fmt::format("A shape with random weights, for benchmarks: {}", fmt::join(named_configs(), ", ")));
  sub.add_option("--seed", command->seed, "Seed of the random weights").whole_number().needs(random);
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
