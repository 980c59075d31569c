#include "butterfly/infer/request/text_stream.h"

#include <algorithm>
#include <utility>

namespace butterfly {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    std::vector<std::size_t> borders(stop.size() + 1, 0);
    for (std::size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = borders[border];
      if (stop[i] == stop[border]) ++border;
      borders[i + 1] = border;
    }
    stops_.push_back({.text = std::move(stop), .borders = std::move(borders)});
  }
}

std::size_t StopStrings::push(char byte) {
  std::size_t longest = 0;
  for (Stop& stop : stops_) {
    std::size_t& matched = stop.matched;
    if (matched == stop.text.size()) matched = stop.borders[matched];
    while (matched > 0 && stop.text[matched] != byte) matched = stop.borders[matched];
    if (stop.text[matched] == byte) ++matched;
    if (matched == stop.text.size()) longest = std::max(longest, matched);
  }
  return longest;
}

std::size_t StopStrings::begun() const {
  std::size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.matched);
  return longest;
}

TextStream::TextStream(const Tokenizer& tokenizer, const StreamingDetokenizer::Options& options,
                       std::vector<std::string> stops, std::vector<TokenId> shown)
    : detokenizer_(tokenizer, options), tokenizer_(&tokenizer), stops_(std::move(stops)), shown_(std::move(shown)) {}

std::string TextStream::push(TokenId token) {
  if (stopped_) return {};
  if (std::ranges::find(shown_, token) != shown_.end()) {
    return release(detokenizer_.finish() + tokenizer_->piece(token, Tokenizer::Control::kShown));
  }
  return release(detokenizer_.push(token));
}

std::string TextStream::finish() {
  if (stopped_) return {};
  std::string text = release(detokenizer_.finish());
  if (!stopped_) text += std::exchange(held_, {});
  return text;
}

/// Everything that cannot be the beginning of a stop string any more.
std::string TextStream::release(std::string_view text) {
  for (const char byte : text) {
    held_ += byte;
    const std::size_t stop = stops_.push(byte);
    if (stop == 0) continue;
    stopped_ = true;
    return held_.substr(0, held_.size() - stop);
  }
  const std::size_t ready = held_.size() - stops_.begun();
  std::string released = held_.substr(0, ready);
  held_.erase(0, ready);
  return released;
}

}  // namespace butterfly
