#include "butterfly/text/template/encode_chat.h"

namespace butterfly {

Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                         const MarkedText& text) {
  EncodeOptions options{.add_bos = false};
  std::vector<TokenId> guarded;
  if (!text.marks.empty()) {
    const Vocabulary& vocabulary = tokenizer.vocabulary();
    for (int id = 0; id < vocabulary.size(); ++id) {
      const auto index = static_cast<std::size_t>(id);
      if (vocabulary.types[index] != TokenType::kUserDefined) continue;
      const std::string& piece = vocabulary.pieces[index];
      // Runs of spaces and line ends are text, also the template's.
      const bool visible = piece.find_first_not_of(" \t\r\n") != std::string::npos;
      if (visible && chat_template.source().find(piece) != std::string::npos) guarded.push_back(TokenId{id});
    }
    options.marks = text.marks;
    options.guarded = guarded;
  }
  return tokenizer.encode(text.bytes, options);
}

}  // namespace butterfly
