#include "butterfly/text/tokenizer.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, const Options& options)
    : tokenizer_(&tokenizer), options_(options), at_start_(options.first_in_text) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (vocabulary.kind != TokenizerKind::kSentencePiece || !vocabulary.add_space_prefix) at_start_ = false;
}

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer) : StreamingDetokenizer(tokenizer, Options{}) {}

std::string StreamingDetokenizer::push(TokenId token) {
  std::string piece = tokenizer_->piece(token, options_.control);
  if (piece.empty()) return {};
  if (at_start_ && piece.front() == ' ') piece.erase(0, 1);
  at_start_ = false;
  pending_ += piece;

  std::string ready;
  std::string_view rest(pending_);
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    const auto size = static_cast<std::size_t>(step.size);
    ready += step.kind == Utf8Step::Kind::kCharacter ? rest.substr(0, size) : kReplacementCharacter;
    rest.remove_prefix(size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return ready;
}

std::string StreamingDetokenizer::finish() {
  std::string result;
  if (!pending_.empty()) result = kReplacementCharacter;
  pending_.clear();
  return result;
}

}  // namespace butterfly
