// The steps that turn the spellings of tokens into text, token by token. TextDecoder is immutable after creation and
// thread-safe; a Run belongs to one text and one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/steps/pattern.h"
#include "butterfly/text/steps/step_options.h"

namespace butterfly {

/// One step on its way through a text. What it is sure of comes out at once, the rest with finish(). After a step that
/// fuses tokens, `text` is more of one token, and `begins` is true for its first part only.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  struct Part {
    std::string text;
    bool begins = true;  // a token begins here
  };
  virtual void push(Part part, std::vector<Part>& out) = 0;
  virtual void finish(std::vector<Part>& /*out*/) {}
};

class TextDecoder {
 public:
  TextDecoder() = default;

  /// Errors: those of Pattern::compile.
  static Result<TextDecoder> create(const std::vector<DecoderStep>& steps);

  class Run {
   public:
    explicit Run(const TextDecoder& decoder);
    /// The bytes that are ready after one more token.
    std::string push(std::string_view token);
    std::string finish();

   private:
    std::string through(std::size_t first, std::vector<DecoderStage::Part> parts);
    std::vector<std::unique_ptr<DecoderStage>> stages_;
  };

 private:
  std::vector<DecoderStep> steps_;
  std::vector<std::shared_ptr<const Pattern>> patterns_;  // by step; shared: a Run keeps what it uses
};

}  // namespace butterfly
