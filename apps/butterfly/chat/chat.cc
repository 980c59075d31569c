// butterfly chat: a conversation with a model. Answers alone go to stdout; prompts, reasoning and notes to stderr.
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "butterfly/base/text/one_line.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "chat/chat_session.h"
#include "chat/line_reader.h"
#include "commands.h"
#include "shared/answer_text.h"

namespace butterfly::app {
namespace {

constexpr const char* kHelp =
    "  /system TEXT   what the model is told first; empty: nothing\n"
    "  /reset         forgets what was said, not the system's text\n"
    "  /save FILE     writes the conversation as JSON\n"
    "  /load FILE     goes on with a saved one\n"
    "  /tool TEXT     the result of the call that the model made last\n"
    "  /help          this list\n"
    "  /exit          ends, as Ctrl-D does\n"
    "A line that ends with \\ goes on in the next one; so does all between two lines of \"\"\".\n"
    "Ctrl-C stops an answer; what was said of it stays in the conversation.\n";

struct ChatCommand {
  InferenceFlags flags;
  ChatFlags chat;
  std::string render;  // a file: print what its conversation becomes, and end
  bool ids = false;    // with its ids, as JSON
};

/// The part of a terminal's user in a conversation.
class Talk {
 public:
  Talk(ChatSession& session, LineReader& reader, const InferenceConfig& config)
      : session_(session), reader_(reader), quiet_(config.quiet) {}

  /// `first`: what is said before anybody is asked; may be empty.
  Result<int> run(const std::string& first);

 private:
  std::optional<std::string> read_message();
  bool obey(const std::string& line);
  void say(const std::string& text, const std::string& role);
  void show(const AnswerEvent& event);
  void print(std::string_view text);
  void note(const ChatSession::Turn& turn);
  void report(const Status& status, const std::string& done) {
    std::fprintf(stderr, "%s\n", one_line(status ? done : status.error().message).c_str());
  }

  ChatSession& session_;
  LineReader& reader_;
  const bool quiet_;
  bool reasoning_ = false;  // was shown last
  bool ended_ = false;
  int exit_ = kExitOk;
  char last_ = '\n';
};

void Talk::print(std::string_view text) {
  if (text.empty()) return;
  last_ = text.back();
  errno = 0;
  if (write_answer(text)) return;
  // Nobody reads any more.
  ended_ = true;
  exit_ = errno == EPIPE ? kExitPipeClosed : kExitBadInput;
  session_.stop_answer();
}

void Talk::show(const AnswerEvent& event) {
  using Kind = AnswerEvent::Kind;
  if (event.kind == Kind::kReasoning) {
    // Part of no answer: a person may want to see it, a pipe does not.
    if (quiet_ || !reader_.is_terminal()) return;
    std::fprintf(stderr, "\033[2m%s\033[0m", event.text.c_str());
    reasoning_ = true;
    return;
  }
  if (std::exchange(reasoning_, false)) std::fputs("\n\n", stderr);
  if (event.kind == Kind::kContent) return print(event.text);
  if (last_ != '\n') print("\n");
  print(dump_json(call_message(event.call)) + "\n");
}

void Talk::note(const ChatSession::Turn& turn) {
  if (std::exchange(reasoning_, false)) std::fputs("\n", stderr);
  if (last_ != '\n' || turn.tokens == 0) print("\n");
  if (turn.reason == FinishReason::kContext) {
    std::fprintf(stderr, "(the context is full: /reset begins anew)\n");
  } else if (turn.reason == FinishReason::kLength) {
    std::fprintf(stderr, "(cut after %zu tokens: -n allows more)\n", turn.tokens);
  } else if (turn.reason == FinishReason::kCancelled) {
    std::fprintf(stderr, "(stopped)\n");
  }
  if (quiet_) return;
  const double decode_s = turn.seconds - turn.first_token_s;
  const double speed = turn.tokens > 1 && decode_s > 0 ? static_cast<double>(turn.tokens - 1) / decode_s : 0;
  std::fprintf(stderr, "[prompt %zu tokens, %zu of them cached | answer %zu tokens, %.1f tokens/s]\n",
               turn.prompt_tokens, turn.cached_tokens, turn.tokens, speed);
}

void Talk::say(const std::string& text, const std::string& role) {
  last_ = '\n';
  const auto turn = session_.answer(text, role, [this](const AnswerEvent& event) { show(event); });
  if (turn) return note(*turn);
  std::fprintf(stderr, "butterfly: %s\n", one_line(turn.error().message).c_str());
  if (turn.error().code == ErrorCode::kCancelled) ended_ = true;
  // A script shall learn of it; a person reads it and goes on.
  if (!reader_.is_terminal()) exit_ = kExitBadInput;
}

/// A line that begins with '/'. False where it is no command.
bool Talk::obey(const std::string& line) {
  const std::size_t space = line.find_first_of(" \t");
  const std::string name = line.substr(0, space);
  const std::size_t begin = space == std::string::npos ? space : line.find_first_not_of(" \t", space);
  const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
  if (name == "/exit" || name == "/quit") {
    ended_ = true;
  } else if (name == "/help") {
    std::fputs(kHelp, stderr);
  } else if (name == "/reset") {
    session_.reset();
  } else if (name == "/system") {
    session_.set_system(rest);
  } else if ((name == "/save" || name == "/load") && rest.empty()) {
    std::fprintf(stderr, "%s needs the name of a file\n", name.c_str());
  } else if (name == "/save") {
    report(session_.save(rest), fmt::format("saved {} messages to {}", session_.size(), rest));
  } else if (name == "/load") {
    const Status loaded = session_.load(rest);
    report(loaded, fmt::format("{} messages from {}", session_.size(), rest));
  } else if (name == "/tool") {
    say(rest, "tool");
  } else {
    std::fprintf(stderr, "%s is no command, /help lists them\n", one_line(name).c_str());
  }
  return true;
}

/// One message of perhaps several lines; nothing at the end of the input.
std::optional<std::string> Talk::read_message() {
  std::optional<std::string> line = reader_.read("> ");
  if (!line) return {};
  std::string text;
  if (*line == "\"\"\"") {
    while ((line = reader_.read(". ")) && *line != "\"\"\"") text += (text.empty() ? "" : "\n") + *line;
    if (text.empty()) text = " ";
  } else {
    while (line && line->ends_with('\\')) {
      text += line->substr(0, line->size() - 1) + "\n";
      line = reader_.read(". ");
    }
    if (line) text += *line;
  }
  if (text.find('\n') == std::string::npos) reader_.remember(text);
  return text;
}

Result<int> Talk::run(const std::string& first) {
  if (reader_.is_terminal() && !quiet_) std::fputs("/help lists commands, Ctrl-D ends\n", stderr);
  if (!first.empty()) say(first, "user");
  while (!ended_ && !interrupted().stop_requested()) {
    const std::optional<std::string> message = read_message();
    if (!message) break;
    if (message->find_first_not_of(" \t\n") == std::string::npos) continue;
    if (message->starts_with('/') && message->find('\n') == std::string::npos) {
      obey(*message);
    } else {
      say(*message, "user");
    }
  }
  return interrupted().stop_requested() ? kExitInterrupted : exit_;
}

Result<int> render(const ChatCommand& command) {
  ChatSettings settings;
  std::string path;
  if (command.chat.chat_template.empty() || command.ids) {
    BF_ASSIGN_OR_RETURN(const InferenceConfig config, read_chat_config(command.flags, settings));
    path = config.model;
  }
  BF_ASSIGN_OR_RETURN(const ChatModel model, ChatModel::create(command.chat, settings));
  BF_ASSIGN_OR_RETURN(ChatInput input, read_conversation(command.render));
  BF_ASSIGN_OR_RETURN(const MarkedText text, model.render(std::move(input)));
  std::string out = text.bytes;
  if (command.ids) {
    BF_ASSIGN_OR_RETURN(Vocabulary vocabulary, open_vocabulary(path));
    BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(std::move(vocabulary)));
    BF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, model.encode(tokenizer, text));
    nlohmann::ordered_json json = {{"text", text.bytes}, {"ids", nlohmann::ordered_json::array()}};
    for (const TokenId id : ids) json["ids"].push_back(id.value);
    out = dump_json(json) + "\n";
  }
  const bool written = std::fwrite(out.data(), 1, out.size(), stdout) == out.size() && std::fflush(stdout) == 0;
  if (!written) return make_error(ErrorCode::kIo, "the text could not be written to standard output");
  return kExitOk;
}

Result<int> run(const ChatCommand& command) {
  if (!command.render.empty()) return render(command);
  ChatSettings settings;
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_chat_config(command.flags, settings));
  BF_ASSIGN_OR_RETURN(const ChatModel model, ChatModel::create(command.chat, settings));
  BF_ASSIGN_OR_RETURN(const auto grammar, read_grammar(config));
  BF_ASSIGN_OR_RETURN(OpenModel open, open_model(config));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(open.checkpoint.vocabulary));
  config.request.grammar = over_tokens(grammar, tokenizer);
  BF_ASSIGN_OR_RETURN(std::shared_ptr<Drafter> drafter, open_drafter(config, open.checkpoint));
  ChatSession session(model, tokenizer, open, config, command.chat.system, std::move(drafter));
  LineReader reader;
  const std::stop_callback on_end(interrupted(), [&] { reader.end(); });
  // While a line is typed, Ctrl-C is a key; a second one during an answer ends the program. One that comes between the
  // two, at a terminal, has nothing to stop.
  const InterruptHandler handler(
      [&] { return session.stop_answer() || (reader.is_terminal() && !session.is_answering()); });
  return Talk(session, reader, config).run(config.prompt);
}

}  // namespace

void add_chat(Command app, Action& action) {
  auto sub = app.add_subcommand("chat", "Talk with a model, on this machine or split over several");
  auto command = std::make_shared<ChatCommand>();
  InferenceConfig standard;
  add_inference_flags(sub, command->flags);
  command->flags.keys.add(sub, text_keys());
  add_chat_flags(sub, command->chat);
  sub.add_option("--render", command->render,
                 "JSON file of a conversation: print what the template makes of it, and end");
  sub.add_flag("--ids", command->ids, "With --render: text and token ids of the model, as JSON");
  sub.footer(
      "Answers alone go to stdout, so that it can be a pipe; -n is 4096 and sampling is as the model's files say "
      "unless "
      "flags say otherwise. Examples:\n"
      "  butterfly chat -m model.gguf --system \"Answer in one sentence.\"\n"
      "  butterfly chat -m model.gguf --workers 127.0.0.1:7001,127.0.0.1:7002\n"
      "  printf 'Hello\\nAnd you?\\n' | butterfly chat -m model.gguf -q\n"
      "  butterfly chat --chat-template model.jinja --render conversation.json\n"
      "In a conversation:\n" +
      std::string(kHelp));
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
