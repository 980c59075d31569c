// /v1/completions: "text_completion".
#include "butterfly/base/json.h"
#include "butterfly/serve/protocol/answer_writer.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

class CompletionWriter final : public AnswerWriter {
 public:
  explicit CompletionWriter(AnswerSettings settings) : AnswerWriter(std::move(settings)), choices_(settings_.choices) {}

  void prompt(std::size_t choice, const std::string& text, const std::vector<AnswerPiece>& pieces) override {
    Choice& state = choices_[choice];
    for (const AnswerPiece& piece : pieces) {
      note(state, piece);
      state.characters += characters(piece.text);
    }
    state.text += text;
    state.characters = characters(text);
    if (settings_.stream) emit_chunk(choice, text, nullptr);
  }

  void piece(std::size_t choice, const AnswerPiece& piece) override {
    Choice& state = choices_[choice];
    if (piece.is_token) note(state, piece);
    state.text += piece.text;
    state.characters += characters(piece.text);
    if (settings_.stream && !piece.text.empty()) emit_chunk(choice, piece.text, nullptr);
  }

  void end(std::size_t choice, FinishReason reason) override {
    choices_[choice].finish_reason = butterfly::finish_reason(reason, false);
    if (settings_.stream) emit_chunk(choice, "", choices_[choice].finish_reason);
  }

  void finish(const AnswerUsage& usage) override {
    if (!settings_.stream) return;
    if (settings_.include_usage) {
      ApiJson chunk = head();
      chunk["choices"] = ApiJson::array();
      chunk["usage"] = usage_json(usage, 0);
      emit(chunk);
    }
    emit_done();
  }

  ApiJson whole(const AnswerUsage& usage) override {
    ApiJson json = head();
    json["choices"] = ApiJson::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      json["choices"].push_back({{"index", i},
                                 {"text", choices_[i].text},
                                 {"logprobs", take_logprobs(choices_[i])},
                                 {"finish_reason", choices_[i].finish_reason}});
    }
    json["usage"] = usage_json(usage, 0);
    return json;
  }

 private:
  struct Choice {
    std::string text{}, finish_reason{};
    std::size_t characters = 0;  // of the text so far
    ApiJson tokens = ApiJson::array(), token_logprobs = ApiJson::array(), top = ApiJson::array(),
            offsets = ApiJson::array();
  };

  ApiJson head() const {
    return {{"id", settings_.id},
            {"object", "text_completion"},
            {"created", settings_.created},
            {"model", settings_.model},
            {"system_fingerprint", "butterfly"}};
  }

  void note(Choice& state, const AnswerPiece& piece) {
    if (!settings_.logprobs) return;
    state.tokens.push_back(piece.shown.token);
    state.offsets.push_back(state.characters);
    if (!piece.has_logprob) {
      state.token_logprobs.push_back(nullptr);
      state.top.push_back(nullptr);
    } else {
      state.token_logprobs.push_back(piece.shown.logprob);
      ApiJson best = ApiJson::object();
      for (const ShownLogprob& each : piece.top) {
        // A byte that is no character has no name of its own in JSON.
        const std::string name = find_invalid_utf8(each.token) ? bytes_name(each.token) : each.token;
        if (!best.contains(name)) best[name] = each.logprob;
      }
      state.top.push_back(std::move(best));
    }
  }

  static std::string bytes_name(const std::string& token) {
    std::string name = "bytes:";
    for (const char c : token) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return name;
  }

  ApiJson take_logprobs(Choice& state) {
    if (!settings_.logprobs) return nullptr;
    return {{"tokens", std::exchange(state.tokens, ApiJson::array())},
            {"token_logprobs", std::exchange(state.token_logprobs, ApiJson::array())},
            {"top_logprobs", std::exchange(state.top, ApiJson::array())},
            {"text_offset", std::exchange(state.offsets, ApiJson::array())}};
  }

  void emit_chunk(std::size_t choice, const std::string& text, const ApiJson& reason) {
    ApiJson chunk = head();
    chunk["choices"].push_back(
        {{"index", choice}, {"text", text}, {"logprobs", take_logprobs(choices_[choice])}, {"finish_reason", reason}});
    if (settings_.include_usage) chunk["usage"] = nullptr;
    emit(chunk);
  }

  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_writer(AnswerSettings settings) {
  return std::make_unique<CompletionWriter>(std::move(settings));
}

}  // namespace butterfly
