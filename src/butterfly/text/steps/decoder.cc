#include "butterfly/text/steps/decoder.h"

#include <charconv>
#include <utility>

#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/steps/unicode.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

using Part = DecoderStage::Part;
using Parts = std::vector<Part>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + from.size())) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  if (done > 0) text = result.append(text, done);
}

/// English punctuation and contractions lose the space in front.
void clean_up(std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

class ByteLevelStage : public DecoderStage {
 public:
  void push(Part part, Parts& out) override {
    std::string bytes;
    for (std::size_t i = 0; i < part.text.size();) {
      const Utf8Step step = utf8_step(std::string_view(part.text).substr(i));
      const auto& byte_of = byte_alphabet().byte_of;
      const auto byte = step.kind == Utf8Step::Kind::kCharacter ? byte_of.find(step.code_point) : byte_of.end();
      if (byte == byte_of.end()) {  // not of the alphabet: the token is its own text
        bytes = part.text;
        break;
      }
      bytes.push_back(byte->second);
      i += static_cast<std::size_t>(step.size);
    }
    out.push_back({std::move(bytes), std::exchange(first_, false)});
  }

 private:
  bool first_ = true;
};

class FuseStage : public DecoderStage {
 public:
  void push(Part part, Parts& out) override { out.push_back({std::move(part.text), std::exchange(first_, false)}); }

 private:
  bool first_ = true;
};

/// Holds back what follows the first suffix of a token: whether that becomes a space says the next token.
class BpeStage : public DecoderStage {
 public:
  explicit BpeStage(std::string suffix) : suffix_(std::move(suffix)) {}

  void push(Part part, Parts& out) override {
    if (!held_.empty()) {
      replace_all(held_, suffix_, " ");
      out.push_back({std::exchange(held_, {}), false});
    }
    const std::size_t at = suffix_.empty() ? std::string::npos : part.text.find(suffix_);
    if (at != std::string::npos) {
      held_ = part.text.substr(at);
      part.text.resize(at);
    }
    out.push_back(std::move(part));
  }

  void finish(Parts& out) override {
    replace_all(held_, suffix_, "");
    out.push_back({std::exchange(held_, {}), false});
  }

 private:
  std::string suffix_;
  std::string held_;
};

class WordPieceStage : public DecoderStage {
 public:
  explicit WordPieceStage(const DecoderStep& step) : prefix_(step.pattern), cleanup_(step.cleanup) {}

  void push(Part part, Parts& out) override {
    if (!std::exchange(first_, false)) {
      if (part.text.starts_with(prefix_)) {
        part.text.erase(0, prefix_.size());
      } else {
        part.text.insert(0, " ");
      }
    }
    if (cleanup_) clean_up(part.text);
    out.push_back(std::move(part));
  }

 private:
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

class MetaspaceStage : public DecoderStage {
 public:
  explicit MetaspaceStage(const DecoderStep& step) : space_(step.pattern), strips_(step.prepend) {}

  void push(Part part, Parts& out) override {
    replace_all(part.text, space_, std::exchange(first_, false) && strips_ ? "" : " ");
    out.push_back(std::move(part));
  }

 private:
  std::string space_;
  bool strips_;
  bool first_ = true;
};

class ByteFallbackStage : public DecoderStage {
 public:
  void push(Part part, Parts& out) override {
    const std::string& text = part.text;
    int value = -1;
    if (text.size() == 6 && text.starts_with("<0x") && text.back() == '>') {
      const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
      if (error != std::errc() || end != text.data() + 5) value = -1;
    }
    if (value >= 0) part.text.assign(1, static_cast<char>(static_cast<unsigned char>(value)));
    out.push_back(std::move(part));
  }
};

/// Up to `left` times a text at the start of each token, up to `right` times at its end: the latter is held back while
/// more of the same token may come.
class StripStage : public DecoderStage {
 public:
  explicit StripStage(const DecoderStep& step) : content_(step.content), left_(step.left), right_(step.right) {}

  void push(Part part, Parts& out) override {
    if (part.begins) {
      end_token(out);
      left_to_strip_ = left_;
    }
    held_ += part.text;
    begins_ = begins_ || part.begins;
    while (left_to_strip_ > 0 && !content_.empty() && held_.size() >= content_.size()) {
      if (!held_.starts_with(content_)) {
        left_to_strip_ = 0;
      } else {
        held_.erase(0, content_.size());
        --left_to_strip_;
      }
    }
    if (left_to_strip_ > 0 && std::string_view(content_).starts_with(held_)) return;
    std::size_t keep = 0;
    for (std::size_t i = 0; i < right_ && !content_.empty() && held_.size() - keep >= content_.size(); ++i) {
      if (held_.compare(held_.size() - keep - content_.size(), content_.size(), content_) != 0) break;
      keep += content_.size();
    }
    if (keep == held_.size() && keep > 0) return;
    out.push_back({held_.substr(0, held_.size() - keep), std::exchange(begins_, false)});
    held_.erase(0, held_.size() - keep);
  }

  void finish(Parts& out) override { end_token(out); }

 private:
  void end_token(Parts& out) {
    for (std::size_t i = 0; i < right_ && !content_.empty() && held_.ends_with(content_); ++i) {
      held_.resize(held_.size() - content_.size());
    }
    if (!held_.empty() || begins_) out.push_back({std::exchange(held_, {}), std::exchange(begins_, false)});
  }

  std::string content_;
  std::size_t left_;
  std::size_t right_;
  std::size_t left_to_strip_ = 0;
  std::string held_;
  bool begins_ = false;
};

/// Within one token. Where tokens were fused the text is one token, so that it comes at the end.
class ReplaceStage : public DecoderStage {
 public:
  ReplaceStage(const DecoderStep& step, std::shared_ptr<const Pattern> pattern, bool fused)
      : pattern_(std::move(pattern)), literal_(step.pattern), content_(step.content), fused_(fused) {}

  void push(Part part, Parts& out) override {
    if (fused_) {
      held_ += part.text;
      return;
    }
    out.push_back({replaced(std::move(part.text)), part.begins});
  }
  void finish(Parts& out) override {
    if (fused_) out.push_back({replaced(std::exchange(held_, {})), true});
  }

 private:
  std::string replaced(std::string text) const {
    if (!pattern_) {
      replace_all(text, literal_, content_);
      return text;
    }
    if (find_invalid_utf8(text)) return text;
    std::vector<Range<std::size_t>> matches;
    PatternBudget budget(text.size(), 1);
    // A pattern that takes too long leaves the token as it is spelled: decoding has no way to refuse.
    if (!pattern_->find_all(text, budget, matches)) return text;
    std::string result;
    std::size_t done = 0;
    for (const auto& match : matches) {
      result.append(text, done, match.begin - done).append(content_);
      done = match.end;
    }
    return result.append(text, done);
  }

  std::shared_ptr<const Pattern> pattern_;  // shared with the decoder, which may go first
  std::string literal_;
  std::string content_;
  bool fused_;
  std::string held_;
};

class CtcStage : public DecoderStage {
 public:
  explicit CtcStage(const DecoderStep& step)
      : padding_(step.pattern), delimiter_(step.content), cleanup_(step.cleanup) {}

  void push(Part part, Parts& out) override {
    if (!std::exchange(first_, false) && part.text == previous_) return;
    previous_ = part.text;
    replace_all(part.text, padding_, "");
    if (cleanup_) {
      clean_up(part.text);
      replace_all(part.text, delimiter_, " ");
    }
    if (!part.text.empty()) out.push_back(std::move(part));
  }

 private:
  std::string padding_;
  std::string delimiter_;
  bool cleanup_;
  bool first_ = true;
  std::string previous_;
};

class JoinSpacesStage : public DecoderStage {
 public:
  void push(Part part, Parts& out) override {
    if (!std::exchange(first_, false)) part.text.insert(0, " ");
    out.push_back(std::move(part));
  }

 private:
  bool first_ = true;
};

std::unique_ptr<DecoderStage> make_stage(const DecoderStep& step, const std::shared_ptr<const Pattern>& pattern,
                                         bool fused) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::kByteLevel:
      return std::make_unique<ByteLevelStage>();
    case Kind::kBpe:
      return std::make_unique<BpeStage>(step.pattern);
    case Kind::kWordPiece:
      return std::make_unique<WordPieceStage>(step);
    case Kind::kMetaspace:
      return std::make_unique<MetaspaceStage>(step);
    case Kind::kByteFallback:
      return std::make_unique<ByteFallbackStage>();
    case Kind::kStrip:
      return std::make_unique<StripStage>(step);
    case Kind::kReplace:
      return std::make_unique<ReplaceStage>(step, pattern, fused);
    case Kind::kCtc:
      return std::make_unique<CtcStage>(step);
    case Kind::kJoinSpaces:
      return std::make_unique<JoinSpacesStage>();
    case Kind::kFuse:
      break;
  }
  return std::make_unique<FuseStage>();
}

}  // namespace

Result<TextDecoder> TextDecoder::create(const std::vector<DecoderStep>& steps) {
  TextDecoder result;
  result.steps_ = steps;
  for (const DecoderStep& step : steps) {
    std::shared_ptr<const Pattern> shared;
    if (step.kind == DecoderStep::Kind::kReplace && step.is_regex) {
      BF_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(step.pattern, PatternSource::kUntrusted));
      shared = std::make_shared<const Pattern>(std::move(pattern));
    }
    result.patterns_.push_back(std::move(shared));
  }
  return result;
}

TextDecoder::Run::Run(const TextDecoder& decoder) {
  bool fused = false;
  for (std::size_t i = 0; i < decoder.steps_.size(); ++i) {
    const DecoderStep& step = decoder.steps_[i];
    stages_.push_back(make_stage(step, decoder.patterns_[i], fused));
    fused = fused || step.kind == DecoderStep::Kind::kFuse || step.kind == DecoderStep::Kind::kByteLevel;
  }
}

std::string TextDecoder::Run::through(std::size_t first, std::vector<Part> parts) {
  for (std::size_t i = first; i < stages_.size(); ++i) {
    std::vector<Part> next;
    for (Part& part : parts) stages_[i]->push(std::move(part), next);
    parts = std::move(next);
  }
  std::string text;
  for (const Part& part : parts) text += part.text;
  return text;
}

std::string TextDecoder::Run::push(std::string_view token) {
  std::vector<Part> parts;
  parts.push_back({std::string(token), true});
  return through(0, std::move(parts));
}

std::string TextDecoder::Run::finish() {
  std::string text;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    std::vector<Part> rest;
    stages_[i]->finish(rest);
    text += through(i + 1, std::move(rest));
  }
  return text;
}

}  // namespace butterfly
