// butterfly inspect --quality FILE --against FILE: what weights, and predictions of a text, lose by how they are
// stored.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/request/perplexity.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/format/weight_error.h"
#include "commands.h"

namespace butterfly::app {
namespace {

struct Quality {
  std::vector<WeightError> weights;
  std::optional<DivergenceResult> text;
};

Result<DivergenceResult> compare_text(const InspectOptions& options, const Checkpoint& judged,
                                      const Checkpoint& against) {
  std::ifstream in(options.text, std::ios::binary);
  if (!in) return make_error(ErrorCode::kNotFound, "{} cannot be opened", options.text);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(against.vocabulary));
  BF_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, tokenizer.encode(text, {.add_bos = false}));
  PerplexityOptions windows;
  windows.window = std::min({options.window, against.config.context, judged.config.context});
  if (tokenizer.vocabulary().add_bos) windows.bos = tokenizer.vocabulary().bos;
  BF_ASSIGN_OR_RETURN(const auto ours, Deployment::create(judged, {}));
  BF_ASSIGN_OR_RETURN(const auto theirs, Deployment::create(against, {}));
  return divergence(ours->pipeline(), theirs->pipeline(), tokens, windows, interrupted());
}

Result<Quality> measure(const InspectOptions& options) {
  BF_ASSIGN_OR_RETURN(const Checkpoint judged, open_checkpoint(options.quality));
  BF_ASSIGN_OR_RETURN(const Checkpoint against, open_checkpoint(options.against));
  Quality quality;
  BF_ASSIGN_OR_RETURN(quality.weights, weight_errors(judged, against, interrupted()));
  if (options.text.empty()) return quality;
  BF_ASSIGN_OR_RETURN(quality.text, compare_text(options, judged, against));
  return quality;
}

void print_json(const Quality& quality) {
  nlohmann::ordered_json j;
  for (const WeightError& weight : quality.weights) {
    j["weights"].push_back(
        {{"name", weight.name}, {"type", to_string(weight.type)}, {"relative_error", weight.relative}});
  }
  if (quality.text) {
    j["text"] = {{"kl_divergence", quality.text->mean},
                 {"largest_kl_divergence", quality.text->largest},
                 {"same_choice", quality.text->same_choice},
                 {"predicted_tokens", quality.text->predicted}};
  }
  std::printf("%s\n", dump_json(j, {.indent = 2}).c_str());
}

void print_table(const Quality& quality) {
  std::printf("%-32s %-8s %s\n", "weight", "type", "relative error");
  for (const WeightError& weight : quality.weights) {
    std::printf("%-32s %-8s %.5f\n", weight.name.c_str(), std::string(to_string(weight.type)).c_str(), weight.relative);
  }
  if (!quality.text) return;
  std::printf(
      "KL divergence %.6f nats a token (largest %.4f) over %llu tokens; %.2f %% have the same likeliest token\n",
      quality.text->mean, quality.text->largest, static_cast<unsigned long long>(quality.text->predicted),
      100.0 * quality.text->same_choice);
}

}  // namespace

int inspect_quality(const InspectOptions& options) {
  const auto quality = measure(options);
  if (!quality) return fail(quality.error());
  options.json ? print_json(*quality) : print_table(*quality);
  return kExitOk;
}

}  // namespace butterfly::app
