#include "chat/chat_model.h"

namespace butterfly::app {
namespace {

constexpr const char* kGroup = "The conversation";

}  // namespace

void add_chat_flags(Command command, ChatFlags& flags) {
  command
      .add_option("--chat-template", flags.chat_template,
                  "Jinja file, or the name of one of the model's templates [the model's default]")
      .group(kGroup);
  command.add_option("--system", flags.system, "What the model is told first").group(kGroup);
  command.add_option("--tools", flags.tools, "JSON file: a list of functions that the model may call").group(kGroup);
  command.add_option("--documents", flags.documents, "JSON file: a list of texts with titles for the template")
      .group(kGroup);
  command
      .add_option("--template-var", flags.variables,
                  "NAME=VALUE for the template, VALUE as JSON or text: enable_thinking=false")
      .takes_one_each_time()
      .group(kGroup);
}

Result<InferenceConfig> read_chat_config(const InferenceFlags& flags, ChatSettings& settings) {
  InferenceConfig standard;
  standard.request.tokens_max = 4096;
  BF_ASSIGN_OR_RETURN(const InferenceConfig first, read_config(flags, standard));
  BF_ASSIGN_OR_RETURN(settings, read_chat_settings(first.model));
  SamplingOptions& sampling = standard.request.sampling;
  sampling.temperature = settings.temperature.value_or(sampling.temperature);
  sampling.top_k = settings.top_k.value_or(sampling.top_k);
  sampling.top_p = settings.top_p.value_or(sampling.top_p);
  sampling.min_p = settings.min_p.value_or(sampling.min_p);
  // The files mean transformers' penalty, which looks back at everything.
  if (settings.repeat_penalty) sampling.repeat_window = kWholeText;
  sampling.repeat_penalty = settings.repeat_penalty.value_or(sampling.repeat_penalty);
  BF_TRY(validate(sampling));
  return read_config(flags, standard);
}

}  // namespace butterfly::app
