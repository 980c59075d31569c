// butterfly tokenize: text to token ids and back, with the tokenizer of a model; and what corpora need, a tokenizer
// learned from them and their tokens as a file.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iterator>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "butterfly/text/tokenizer.h"
#include "butterfly/text/utf8.h"
#include "commands.h"
#include "tokenize/tokenize_corpus.h"

namespace butterfly::app {
namespace {

struct TokenizeCommand {
  std::string model;
  std::string text;
  std::string file;
  bool ids = false;
  bool no_bos = false;
  bool decode = false;
  bool add_eos = false;
  bool plain_text = false;
  bool show_special = false;
  bool json = false;
  int times = 0;
  TrainTokenizerCommand train;
  std::vector<std::string> pack;
  std::string out;
};

Result<std::string> read_input(const TokenizeCommand& command) {
  if (command.file.empty()) return command.text;
  if (command.file == "-") return read_to_end(Descriptor(::dup(STDIN_FILENO)), "standard input", kAnySize);
  return read_file(command.file, kAnySize);
}

/// Integers between white space or commas. Errors: kInvalidArgument for anything else and for ids outside [0, vocab).
Result<std::vector<TokenId>> parse_ids(std::string_view text, int vocab) {
  const auto separates = [](char c) { return c == ',' || std::isspace(static_cast<unsigned char>(c)) != 0; };
  std::vector<TokenId> ids;
  for (std::size_t begin = 0; begin < text.size();) {
    if (separates(text[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < text.size() && !separates(text[end])) ++end;
    std::int32_t id = -1;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0 || id >= vocab) {
      return make_error(ErrorCode::kInvalidArgument, "\"{}\" at offset {} is no token id, expected 0 to {}",
                        text.substr(begin, std::min<std::size_t>(end - begin, 40)), begin, vocab - 1);
    }
    ids.emplace_back(id);
    begin = end;
  }
  return ids;
}

/// A piece on one line: quotes, backslashes, control characters and bytes outside UTF-8 are escaped.
std::string escaped(std::string_view piece) {
  std::string result;
  while (!piece.empty()) {
    const Utf8Step step = utf8_step(piece);
    const auto size = static_cast<std::size_t>(step.size);
    const bool character = step.kind == Utf8Step::Kind::kCharacter;
    if (piece.front() == '\n') {
      result += "\\n";
    } else if (piece.front() == '\'' || piece.front() == '\\') {
      result.append("\\").append(piece.substr(0, 1));
    } else if (character && step.code_point >= 0x20 && !(step.code_point >= 0x7F && step.code_point < 0xA0)) {
      result += piece.substr(0, size);
    } else {
      for (char byte : piece.substr(0, size)) result += fmt::format("\\x{:02X}", static_cast<unsigned char>(byte));
    }
    piece.remove_prefix(size);
  }
  return result;
}

Status write(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) return make_error(ErrorCode::kIo, "standard output cannot be written");
  return {};
}

/// One object on one line: the ids, and what each adds to the text.
std::string as_json(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (TokenId id : ids) {
    list.push_back(id.value);
    pieces.push_back(tokenizer.piece(id, Tokenizer::Control::kShown));
  }
  const nlohmann::ordered_json object{{"ids", std::move(list)}, {"pieces", std::move(pieces)}};
  return dump_json(object) + "\n";
}

/// Seconds, ids and MB/s of each round; the ids are the same every time.
Result<int> print_times(const TokenizeCommand& command, const Tokenizer& tokenizer, const std::string& input,
                        const EncodeOptions& options) {
  std::string output;
  for (int i = 0; i < command.times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    BF_ASSIGN_OR_RETURN(const auto ids, tokenizer.encode(input, options));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    output += fmt::format("{:.6f} s  {} ids  {:.1f} MB/s\n", seconds, ids.size(),
                          static_cast<double>(input.size()) / 1e6 / std::max(seconds, 1e-9));
  }
  BF_TRY(write(output));
  return kExitOk;
}

Result<int> run(const TokenizeCommand& command) {
  if (!command.train.files.empty()) {
    TrainTokenizerCommand train = command.train;
    train.out = command.out;
    BF_TRY(train_tokenizer(train));
    return kExitOk;
  }
  BF_ASSIGN_OR_RETURN(Vocabulary vocabulary, open_vocabulary(command.model));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(std::move(vocabulary)));
  if (!command.pack.empty()) {
    BF_TRY(pack_tokens(command.pack, tokenizer, command.out));
    return kExitOk;
  }
  BF_ASSIGN_OR_RETURN(const std::string input, read_input(command));
  if (command.decode) {
    BF_ASSIGN_OR_RETURN(const auto ids, parse_ids(input, tokenizer.vocabulary().size()));
    const auto control = command.show_special ? Tokenizer::Control::kShown : Tokenizer::Control::kHidden;
    BF_TRY(write(tokenizer.decode(ids, control)));
    return kExitOk;
  }
  const EncodeOptions options{
      .add_bos = !command.no_bos, .add_eos = command.add_eos, .parse_special = !command.plain_text};
  if (command.times > 0) return print_times(command, tokenizer, input, options);
  BF_ASSIGN_OR_RETURN(const auto ids, tokenizer.encode(input, options));
  std::string output;
  if (command.json) {
    BF_TRY(write(as_json(tokenizer, ids)));
    return kExitOk;
  }
  for (TokenId id : ids) {
    if (command.ids) {
      output += fmt::format("{}{}", output.empty() ? "" : " ", id.value);
    } else {
      output += fmt::format("{:6}  '{}'\n", id.value, escaped(tokenizer.piece(id, Tokenizer::Control::kShown)));
    }
  }
  if (command.ids) output += '\n';
  BF_TRY(write(output));
  return kExitOk;
}

}  // namespace

void add_tokenize(Command app, Action& action) {
  auto sub = app.add_subcommand("tokenize", "Turn text into token ids, or ids into text; learn a tokenizer");
  auto command = std::make_shared<TokenizeCommand>();
  auto model = sub.add_option("-m,--model", command->model,
                              "Whose tokenizer: GGUF file, Hugging Face directory, tokenizer.json, SentencePiece's or "
                              "tiktoken's tokenizer.model, vocab.json beside merges.txt, vocab.txt");
  auto text = sub.add_option("-p,--prompt", command->text, "The text (with --decode: the ids)");
  auto file = sub.add_option("-f,--file", command->file, "Read it from a file, - for standard input");
  file.excludes(text);
  sub.add_flag("--ids", command->ids, "Ids alone, on one line");
  sub.add_flag("--no-bos", command->no_bos, "Do not put the token that starts texts in front");
  sub.add_flag("--add-eos", command->add_eos, "Put what ends texts behind, where the tokenizer has it");
  sub.add_flag("--plain-text", command->plain_text, "Take \"<s>\" and the like for text, not for control tokens");
  sub.add_flag("--json", command->json, "Ids and pieces as one JSON object");
  sub.add_flag("--decode", command->decode, "Turn ids into text");
  sub.add_flag("--show-special", command->show_special, "With --decode: control tokens, too");
  sub.add_option("--time", command->times, "Encode that often and print how long each took").in_range(1, 1000);
  auto train = sub.add_option("--train", command->train.files,
                              "Learn a byte-level BPE tokenizer from these texts and write it as tokenizer.json")
                   .excludes({text, file, model});
  sub.add_option("--vocab", command->train.vocab, "With --train: tokens, <|endoftext|> and 256 bytes among them")
      .needs(train)
      .in_range(257, 1 << 24)
      .show_default();
  auto pack = sub.add_option("--pack", command->pack, "Write the tokens of these texts as a file for training")
                  .excludes({text, file, train})
                  .needs(model);
  auto out = sub.add_option("--out", command->out, "Where --train and --pack write to");
  train.needs(out);
  pack.needs(out);
  sub.footer(
      "Examples:\n"
      "  butterfly tokenize -m models/demo.gguf -p 'To be, or not to be'\n"
      "  echo 'To be' | butterfly tokenize -m tokenizer.json -f - --json\n"
      "  butterfly tokenize --train plays.txt poems.txt --vocab 2048 --out tokenizer.json\n"
      "  butterfly tokenize -m tokenizer.json --pack plays.txt poems.txt --out corpus.tokens\n"
      "--train finds the merges that Hugging Face's tokenizers finds (BpeTrainer, ByteLevel), which reads the result, "
      "too.");
  const auto missing = [model, text, file, train, pack]() -> std::string {
    const bool corpus = train.count() + pack.count() > 0;
    if (train.count() == 0 && model.count() == 0) return "-m MODEL, or --train FILE...";
    if (!corpus && text.count() + file.count() == 0) return "-p TEXT or --file FILE";
    return "";
  };
  run_later(
      sub, action, [command] { return run(*command); }, missing);
}

}  // namespace butterfly::app
