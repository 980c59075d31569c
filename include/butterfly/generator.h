// A model that continues texts: on this machine's threads, over several nodes in this process, or over workers. The
// text depends on the model, the prompt and the text options alone, never on where the layers are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

struct GeneratorOptions {
  int threads = 0;                     // of each node in this process; 0: all that it may use, shared by the nodes
  int nodes = 1;                       // in this process, where there are no workers
  std::vector<std::string> workers{};  // "host:port" of each; they run all layers
  std::string split = "uniform";       // or any other of PartitionManager::strategies()
  std::function<void(const std::string&)> progress{};  // lines for people while loading takes long
};

struct TextOptions {
  int tokens_max = 128;
  float temperature = 0.0f;     // 0: always the most likely token
  int top_k = 0;                // keep the k most likely; 0: all
  float top_p = 1.0f;           // keep the most likely up to this probability
  float min_p = 0.0f;           // drop those below this share of the best one's probability
  float repeat_penalty = 1.0f;  // on the last 64 tokens; 1: none
  std::uint64_t seed = 0;
  std::vector<std::string> stops{};  // the text ends before the first of these
  bool ignore_end = false;           // go on after the model's end-of-text token
};

struct GeneratedText {
  std::string text;         // without the prompt
  std::vector<int> tokens;  // their ids
  std::string finish;       // "length", "context", "end", "stop" or "cancelled"
  double first_token_s = 0.0;
  double total_s = 0.0;
  std::uint64_t wire_bytes = 0;  // sent and received between processes for this text
};

class Generator {
 public:
  /// A GGUF file or a Hugging Face directory. Errors: those of reading the model, kUnavailable naming a worker that
  /// cannot be reached, kNoMemory, kInvalidArgument.
  static Result<Generator> load(const std::string& model, const GeneratorOptions& options = {});

  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  /// Continues `prompt` (UTF-8; empty: from the beginning-of-text token). `on_text` is called with each piece as it
  /// comes, never half a character; the pieces join to the result's text. Calls from several threads take turns.
  /// Errors: kInvalidArgument (a prompt that is no UTF-8 or longer than the context, an option out of range),
  /// kUnavailable when a worker went away: load a new generator then.
  Result<GeneratedText> generate(std::string_view prompt, const TextOptions& options = {},
                                 const std::function<void(std::string_view)>& on_text = {}, std::stop_token stop = {});

  /// The ids of a text as the model sees it as a prompt. Errors: kInvalidArgument.
  Result<std::vector<int>> tokenize(std::string_view text) const;

  /// A line for each node: its layers and the bytes it holds.
  std::string describe() const;

 private:
  struct State;
  explicit Generator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace butterfly
