#include "butterfly/text/tokenizer.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, const Options& options)
    : tokenizer_(&tokenizer), options_(options), at_start_(options.first_in_text) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (vocabulary.kind != TokenizerKind::kSentencePiece || !vocabulary.add_space_prefix) at_start_ = false;
  if (tokenizer.decoder() == nullptr) return;
  run_.emplace(*tokenizer.decoder());
  if (!options.first_in_text) (void)run_->push("a");  // as if in the middle of a text
}

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer) : StreamingDetokenizer(tokenizer, Options{}) {}

std::string StreamingDetokenizer::push(TokenId token) {
  std::string piece = tokenizer_->spelling(token, options_.control);
  if (piece.empty()) return {};
  if (run_) return ready(run_->push(piece));
  if (at_start_ && piece.front() == ' ') piece.erase(0, 1);
  at_start_ = false;
  return ready(piece);
}

std::string StreamingDetokenizer::ready(std::string_view text) {
  pending_ += text;
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
  if (run_) result = ready(run_->finish());
  if (!pending_.empty()) result += kReplacementCharacter;
  pending_.clear();
  return result;
}

}  // namespace butterfly
