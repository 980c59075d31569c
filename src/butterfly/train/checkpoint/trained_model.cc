#include "butterfly/train/checkpoint/trained_model.h"

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/scheduler/generate.h"
#include "butterfly/model/format/export_model.h"
#include "butterfly/model/format/tokenizer/tokenizer_json_writer.h"

namespace butterfly {

Status write_trained_model(const Checkpoint& checkpoint, const std::string& out_path) {
  ExportOptions options;
  // Other kinds of vocabulary live in GGUF files alone; a model is of use without its tokenizer too.
  if (auto json = write_tokenizer_json(checkpoint.vocabulary)) options.tokenizer_json = std::move(*json);
  return export_model(checkpoint, out_path, options);
}

Result<std::string> sample_text(const Checkpoint& checkpoint, const SampleTextOptions& options) {
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(checkpoint.vocabulary));
  Request request;
  BF_ASSIGN_OR_RETURN(request.prompt, encode_prompt(tokenizer, options.prompt));
  request.tokens_max = options.tokens_max;
  request.sampling = {.temperature = 0.8f, .top_k = 40, .seed = options.seed};
  BF_ASSIGN_OR_RETURN(const auto deployment, Deployment::create(checkpoint, {.compute = {.threads = options.threads}}));
  BF_ASSIGN_OR_RETURN(const std::vector<Generation> texts,
                      generate(deployment->pipeline(), tokenizer, std::span(&request, 1),
                               {.context = checkpoint.config.context, .vocab = checkpoint.config.vocab}, {}));
  return options.prompt + texts[0].text;
}

}  // namespace butterfly
