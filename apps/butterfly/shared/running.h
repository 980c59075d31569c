// What the commands share that run a model: their settings, and the model made ready.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/config/inference_keys.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/speculation/drafter.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/text/tokenizer.h"
#include "options/key_flags.h"
#include "options/options.h"

namespace butterfly::app {

/// -c FILE, and a flag for each key that the command has.
struct InferenceFlags {
  std::string file;
  KeyFlags<InferenceConfig> keys;
};

/// -c and the flags of running_keys().
void add_inference_flags(Command command, InferenceFlags& flags, const InferenceConfig& standard = {});

/// `standard`, changed by the file and then by the flags. The file may have every key of inference, so that one serves
/// all commands. Errors: those of the file, of the flags and of validate().
Result<InferenceConfig> read_config(const InferenceFlags& flags, InferenceConfig standard = {});

struct OpenModel {
  Checkpoint checkpoint;
  std::unique_ptr<Deployment> deployment;
  double load_s = 0;

  /// Tokens that a text may have.
  int context() const { return deployment->plan().context; }
};

/// Errors: kInvalidArgument for a model that gives no logits of a text that goes on.
Status check_continues(const ModelConfig& model);

/// The grammar that the settings ask for; null where they ask for none. Errors: those of read_constraint() and of the
/// grammar. To be called before a model is loaded for nothing.
Result<std::shared_ptr<const Grammar>> read_grammar(const InferenceConfig& config);

/// The same over the model's tokens; null for null.
std::shared_ptr<TokenAutomaton> over_tokens(const std::shared_ptr<const Grammar>& grammar, const Tokenizer& tokenizer);

/// Opens the model and deploys it, with progress on stderr unless quiet. Errors: those of both, and of `adapt`, which
/// says what is wanted of the model. Without it, that is check_continues(). `observer` is told of what else happens.
Result<OpenModel> open_model(const InferenceConfig& config, const std::function<Status(ModelConfig&)>& adapt = {},
                             DeploymentObserver observer = {});

/// The same for one that is open already.
Result<OpenModel> deploy_model(Checkpoint checkpoint, const InferenceConfig& config,
                               const std::function<Status(ModelConfig&)>& adapt = {}, DeploymentObserver observer = {});

/// The last part of it: nothing is asked about the model. `stop` ends waiting for workers.
Result<std::unique_ptr<Deployment>> deploy(const Checkpoint& checkpoint, const InferenceConfig& config,
                                           DeploymentObserver observer, const std::stop_token& stop);

/// Who guesses tokens ahead; null: nobody. Errors: those of opening a draft model, and of one with other tokens.
Result<std::shared_ptr<Drafter>> open_drafter(const InferenceConfig& config, const Checkpoint& model);

}  // namespace butterfly::app
