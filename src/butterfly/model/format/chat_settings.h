// What a model's files say about conversations with it: templates, the tokens that these name, how to sample. Plain
// values and functions, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

struct ChatSettings {
  struct Named {
    std::string name;  // "default", "tool_use"
    std::string source;
    std::string origin;  // the file or the key that it is from
  };
  std::vector<Named> templates;
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token" and its text

  /// How the model's makers sample; nothing where they do not say.
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repeat_penalty;
  std::string sampling_origin;  // empty: nobody says

  /// The template `name`; the default one where `name` is empty; null where there is none.
  const Named* find(const std::string& name) const;
};

/// Of a GGUF file, or of a directory with chat_template.jinja, tokenizer_config.json, chat_template.json and
/// generation_config.json, each of which may be absent. Errors: kNotFound, kIo, kBadData naming the file.
Result<ChatSettings> read_chat_settings(const std::string& path);

}  // namespace butterfly
