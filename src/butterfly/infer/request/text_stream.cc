#include "butterfly/infer/request/text_stream.h"

#include <algorithm>

namespace butterfly {

TextStream::TextStream(const Tokenizer& tokenizer, const StreamingDetokenizer::Options& options,
                       std::vector<std::string> stops, std::vector<TokenId> shown)
    : detokenizer_(tokenizer, options), tokenizer_(&tokenizer), stops_(std::move(stops)), shown_(std::move(shown)) {
  std::erase(stops_, "");
}

std::string TextStream::push(TokenId token) {
  if (stopped_) return {};
  if (std::ranges::find(shown_, token) != shown_.end()) {
    held_ += detokenizer_.finish() + tokenizer_->piece(token, Tokenizer::Control::kShown);
  } else {
    held_ += detokenizer_.push(token);
  }
  return release();
}

std::string TextStream::finish() {
  if (stopped_) return {};
  held_ += detokenizer_.finish();
  std::string text = release();
  if (!stopped_) text += std::exchange(held_, {});
  return text;
}

/// Everything that cannot be the beginning of a stop string any more.
std::string TextStream::release() {
  std::size_t stop_at = std::string::npos;
  for (const std::string& stop : stops_) stop_at = std::min(stop_at, held_.find(stop));
  if (stop_at != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, stop_at);
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return text;
}

}  // namespace butterfly
