// butterfly perplexity: how well a model predicts a text file.
#include "butterfly/infer/request/perplexity.h"

#include <unistd.h>

#include <cstdio>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/trace/trace.h"
#include "commands.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

struct PerplexityCommand {
  InferenceFlags flags;
  std::string file;
  int window = 512;
  bool json = false;
};

Result<int> run(const PerplexityCommand& command) {
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_config(command.flags));
  BF_ASSIGN_OR_RETURN(const std::string text, read_file(command.file, kAnySize));
  config.deployment.plan.sequences = 2;
  BF_ASSIGN_OR_RETURN(OpenModel model, open_model(config));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(model.checkpoint.vocabulary));
  BF_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.encode(text, {.add_bos = false}));
  PerplexityOptions options;
  options.window = std::min(command.window, model.context());
  if (tokenizer.vocabulary().add_bos) options.bos = tokenizer.vocabulary().bos;
  if (!config.quiet && isatty(STDERR_FILENO) != 0) {
    options.progress = [](std::uint64_t done, std::uint64_t total) {
      std::fprintf(stderr, "\r%llu of %llu tokens", static_cast<unsigned long long>(done),
                   static_cast<unsigned long long>(total));
      if (done == total) std::fprintf(stderr, "\r\033[K");
    };
  }
  const std::uint64_t begin = trace::now_ns();
  BF_ASSIGN_OR_RETURN(const PerplexityResult result,
                      perplexity(model.deployment->pipeline(), tokens, options, interrupted()));
  if (model.deployment->epochs().size() > 1) BF_TRY(checkpoint_unchanged(model.checkpoint.path));
  const double seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  if (command.json) {
    const nlohmann::ordered_json j{{"perplexity", result.perplexity},
                                   {"mean_nll", result.mean_nll},
                                   {"standard_error", result.standard_error},
                                   {"predicted_tokens", result.predicted},
                                   {"window", options.window},
                                   {"seconds", seconds}};
    std::printf("%s\n", dump_json(j, {.indent = 2}).c_str());
  } else {
    std::printf("perplexity %.4f +- %.4f over %llu tokens in windows of %d\n", result.perplexity,
                result.perplexity * result.standard_error, static_cast<unsigned long long>(result.predicted),
                options.window);
  }
  if (!config.quiet) {
    std::fprintf(stderr, "%.1f tokens/s\n", static_cast<double>(result.predicted) / seconds);
  }
  return kExitOk;
}

}  // namespace

void add_perplexity(Command app, Action& action) {
  auto sub = app.add_subcommand("perplexity", "Measure how well a model predicts a text file");
  auto command = std::make_shared<PerplexityCommand>();
  add_inference_flags(sub, command->flags);
  sub.add_option("-f,--file", command->file, "UTF-8 text file").required();
  sub.add_option("--window", command->window, "Tokens that are predicted from one beginning")
      .in_range(2, 1 << 20)
      .show_default();
  sub.add_flag("--json", command->json, "One JSON object on stdout");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
