#include "shared/running.h"

#include <cstdio>

#include "butterfly/infer/speculation/model_drafter.h"
#include "butterfly/infer/speculation/ngram_drafter.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/trace/trace.h"
#include "commands.h"
#include "shared/access.h"
#include "shared/answer_text.h"
#include "shared/load_display.h"

namespace butterfly::app {

void add_inference_flags(Command command, InferenceFlags& flags, const InferenceConfig& standard) {
  add_config_option(command, flags.file, "docs/configuration.md");
  flags.keys.add(command, running_keys(), standard);
}

Result<InferenceConfig> read_config(const InferenceFlags& flags, InferenceConfig standard) {
  InferenceConfig config = std::move(standard);
  if (!flags.file.empty()) BF_TRY(read_inference_config(flags.file, config));
  BF_TRY(flags.keys.apply(config));
  BF_TRY(validate(config));
  return config;
}

Result<std::shared_ptr<const Grammar>> read_grammar(const InferenceConfig& config) {
  BF_ASSIGN_OR_RETURN(const Constraint constraint, read_constraint(config));
  if (constraint.none()) return std::shared_ptr<const Grammar>();
  return compile(constraint);
}

std::shared_ptr<TokenAutomaton> over_tokens(const std::shared_ptr<const Grammar>& grammar, const Tokenizer& tokenizer) {
  if (!grammar) return {};
  return std::make_shared<TokenAutomaton>(grammar, TokenTrie::create(tokenizer));
}

Status check_continues(const ModelConfig& model) {
  if (!model.encodes_only() && model.output == OutputKind::kLogits) return {};
  return make_error(ErrorCode::kInvalidArgument, "{} continues no text: it is {}; see `butterfly embed`", model.name,
                    model.encodes_only() ? "an encoder" : "stored without a head that gives logits");
}

Result<OpenModel> open_model(const InferenceConfig& config, const std::function<Status(ModelConfig&)>& adapt,
                             DeploymentObserver observer) {
  const std::uint64_t begin = trace::now_ns();
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(config.model));
  BF_ASSIGN_OR_RETURN(OpenModel open, deploy_model(std::move(checkpoint), config, adapt, std::move(observer)));
  open.load_s = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  return open;
}

Result<OpenModel> deploy_model(Checkpoint checkpoint, const InferenceConfig& config,
                               const std::function<Status(ModelConfig&)>& adapt, DeploymentObserver observer) {
  const std::uint64_t begin = trace::now_ns();
  OpenModel open;
  open.checkpoint = std::move(checkpoint);
  BF_TRY(adapt ? adapt(open.checkpoint.config) : check_continues(open.checkpoint.config));
  if (!config.deployment.is_here()) warn_of_plain_text(config.deployment.access);
  BF_ASSIGN_OR_RETURN(open.deployment, deploy(open.checkpoint, config, std::move(observer), interrupted()));
  open.load_s = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  return open;
}

Result<std::unique_ptr<Deployment>> deploy(const Checkpoint& checkpoint, const InferenceConfig& config,
                                           DeploymentObserver observer, const std::stop_token& stop) {
  if (!config.quiet) {
    observer.progress = [](const std::string& line) { write_note(line); };
  }
  LoadDisplay display;
  if (!config.quiet) observer.loading = [&display](const LoadProgress& progress) { display.show(progress); };
  return Deployment::create(checkpoint, config.deployment, observer, stop);
}

Result<std::shared_ptr<Drafter>> open_drafter(const InferenceConfig& config, const Checkpoint& model) {
  if (config.draft_model.empty()) {
    if (config.speculation == Speculation::kOff) return std::shared_ptr<Drafter>();
    return std::make_shared<NgramDrafter>();
  }
  const InferenceConfig here{.model = config.draft_model,
                             .deployment = {.compute = {.threads = config.deployment.compute.threads}},
                             .quiet = config.quiet};
  BF_ASSIGN_OR_RETURN(OpenModel draft, open_model(here));
  BF_TRY(check_same_tokens(model, draft.checkpoint));
  const int context = draft.context();
  return std::make_shared<ModelDrafter>(std::move(draft.deployment), context);
}

}  // namespace butterfly::app
