// butterfly generate: continues a text. The text alone goes to stdout, as it comes; the summary to stderr.
#include "butterfly/infer/scheduler/generate.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/usage/stolen_time.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/plan/cost/load_balance.h"
#include "butterfly/wire/channel/codec.h"
#include "chat/chat_model.h"
#include "commands.h"
#include "generate/prompts.h"
#include "shared/answer_text.h"
#include "shared/predicted.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

struct GenerateCommand {
  InferenceFlags flags;
  ChatFlags chat;
  bool as_chat = false;
  bool json = false;
  std::string prompts{};  // a file; empty: one text
};

/// What the summary and --json report.
struct Report {
  Generation generation;
  std::vector<Generation> further;  // answers to the same prompt
  std::size_t prompt_tokens = 0;
  std::uint64_t wire_bytes = 0;
  DataTraffic traffic;
  double load_s = 0;
  std::vector<Judged> predicted;
  std::string unpredictable;           // why there is no prediction; said before the run
  double load_balance_factor = 0;      // of the nodes while they generated; 0: unknown
  double stolen = 0;                   // share of the CPU time that the host took meanwhile
  std::string disturbance;             // the same as a sentence; empty where it is not worth saying
  std::optional<AnswerRecord> answer;  // of a conversation

  Speeds measured() const { return {.prefill = prefill_tokens_per_s(), .decode = decode_tokens_per_s()}; }
  double prefill_tokens_per_s() const { return static_cast<double>(prompt_tokens) / generation.first_token_s; }
  double decode_tokens_per_s() const {
    const double seconds = generation.total_s - generation.first_token_s;
    const auto tokens = static_cast<double>(generation.tokens.size());
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0;
  }
  std::size_t generated() const {
    std::size_t tokens = generation.tokens.size();
    for (const Generation& each : further) tokens += each.tokens.size();
    return tokens;
  }
  /// What payloads were packed with, mostly.
  std::string_view codec() const {
    if (traffic.lz4_messages + traffic.zstd_messages == 0) return to_string(Codec::kNone);
    return to_string(traffic.lz4_messages > traffic.zstd_messages ? Codec::kLz4 : Codec::kZstd);
  }
  double wire_bytes_per_token() const {
    return static_cast<double>(wire_bytes) / static_cast<double>(prompt_tokens + generated());
  }
};

/// ", slices 3-5 by shared memory"; empty for a whole stage.
std::string describe_slices(const NodeReport& node) {
  const HeldSlices& slices = node.assignment.slices;
  if (slices.whole()) return {};
  const std::string range = ", " + slices.text();
  if (node.exchange == ExchangeEngine::kNone) return range;
  return fmt::format("{} by {}, {} an exchange", range, to_string(node.exchange),
                     format_seconds(node.exchange_times.one_row_s));
}

void print_summary(const Report& r, const InferenceConfig& config, const Deployment& deployment) {
  std::fprintf(stderr,
               "\nprefill %zu tokens, %.1f tokens/s | decode %zu tokens, %.1f tokens/s | first token %s | load %s\n",
               r.prompt_tokens, r.prefill_tokens_per_s(), r.generation.tokens.size(), r.decode_tokens_per_s(),
               format_seconds(r.generation.first_token_s).c_str(), format_seconds(r.load_s).c_str());
  if (!r.predicted.empty()) std::fprintf(stderr, "%s\n", describe(r.predicted).c_str());
  std::fprintf(
      stderr, "wire %s per token | split %s%s | ended by %s\n",
      format_bytes(static_cast<std::uint64_t>(r.wire_bytes_per_token())).c_str(), deployment.plan().strategy.c_str(),
      r.load_balance_factor > 0 ? fmt::format(" | load_balance_factor {:.2f}", r.load_balance_factor).c_str() : "",
      to_string(r.generation.reason));
  if (r.generation.guessed_tokens > 0) {
    std::fprintf(stderr, "%lld of the tokens were guessed ahead and computed together\n",
                 static_cast<long long>(r.generation.guessed_tokens));
  }
  if (!r.disturbance.empty()) std::fprintf(stderr, "disturbed: %s\n", r.disturbance.c_str());
  if (r.traffic.bytes_saved > 0) {
    std::fprintf(stderr, "payloads were packed by %s: %s instead of %s, the same text\n",
                 std::string(r.codec()).c_str(), format_bytes(r.traffic.bytes).c_str(),
                 format_bytes(r.traffic.bytes + r.traffic.bytes_saved).c_str());
  }
  if (const DType type = config.deployment.stage.wire_type; type != DType::kF32 && deployment.nodes().size() > 1) {
    std::fprintf(stderr, "activations were rounded to %s between nodes: not the text of one process\n",
                 std::string(to_string(type)).c_str());
  }
  for (const NodeReport& node : deployment.nodes()) {
    std::fprintf(stderr, "  %-22s layers %d-%d%s%s%s, %s\n", one_line(node.name).c_str(), node.assignment.first_layer,
                 node.assignment.last_layer - 1, node.assignment.embedding ? " + embedding" : "",
                 node.assignment.head ? " + head" : "", describe_slices(node).c_str(),
                 format_bytes(node.memory_bytes).c_str());
  }
}

/// As OpenAI's interface has them; a token's bytes say what its text cannot.
nlohmann::ordered_json logprobs_json(const Generation& generation, const Tokenizer& tokenizer) {
  const auto entry = [&](TokenId token, double logprob) {
    const std::string piece = tokenizer.piece(token, Tokenizer::Control::kShown);
    nlohmann::ordered_json bytes = nlohmann::ordered_json::array();
    for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
    return nlohmann::ordered_json{{"token", piece}, {"id", token.value}, {"logprob", logprob}, {"bytes", bytes}};
  };
  nlohmann::ordered_json content = nlohmann::ordered_json::array();
  for (const SampledToken& sampled : generation.logprobs) {
    nlohmann::ordered_json token = entry(sampled.token, sampled.logprob);
    token["top_logprobs"] = nlohmann::ordered_json::array();
    for (const TokenLogprob& top : sampled.top) token["top_logprobs"].push_back(entry(top.token, top.logprob));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

/// One of several answers.
nlohmann::ordered_json choice_json(const Generation& generation, std::size_t index, const InferenceConfig& config,
                                   const Tokenizer& tokenizer) {
  nlohmann::ordered_json choice{
      {"index", index}, {"text", generation.text}, {"tokens", nlohmann::ordered_json::array()}};
  for (const TokenId token : generation.tokens) choice["tokens"].push_back(token.value);
  if (config.request.sampling.logprobs >= 0) choice["logprobs"] = logprobs_json(generation, tokenizer);
  choice["finish_reason"] = to_string(generation.reason);
  return choice;
}

std::string to_json(const InferenceConfig& config, const Report& r, const Deployment& deployment,
                    const Tokenizer& tokenizer) {
  const StageSettings& settings = config.deployment.stage;
  nlohmann::ordered_json j;
  j["prompt"] = config.prompt;
  j["text"] = r.generation.text;
  if (r.answer) j["message"] = r.answer->message();
  for (const TokenId token : r.generation.tokens) j["tokens"].push_back(token.value);
  if (config.request.sampling.logprobs >= 0) j["logprobs"] = logprobs_json(r.generation, tokenizer);
  j["finish_reason"] = to_string(r.generation.reason);
  if (!r.further.empty()) {
    j["choices"].push_back(choice_json(r.generation, 0, config, tokenizer));
    for (const Generation& each : r.further) {
      j["choices"].push_back(choice_json(each, j["choices"].size(), config, tokenizer));
    }
  }
  j["prompt_tokens"] = r.prompt_tokens;
  j["generated_tokens"] = r.generated();
  j["guessed_tokens"] = r.generation.guessed_tokens;
  j["prefill_tokens_per_s"] = r.prefill_tokens_per_s();
  j["decode_tokens_per_s"] = r.decode_tokens_per_s();
  j["time_to_first_token_s"] = r.generation.first_token_s;
  j["load_s"] = r.load_s;
  j["wire_bytes_per_token"] = r.wire_bytes_per_token();
  j["wire_type"] = to_string(settings.wire_type);
  j["lossy"] = settings.wire_type != DType::kF32 && deployment.nodes().size() > 1;
  j["compression"] = {{"mode", to_string(settings.compression)},
                      {"codec", r.codec()},
                      {"wire_bytes_before", r.traffic.bytes + r.traffic.bytes_saved},
                      {"wire_bytes_after", r.traffic.bytes},
                      {"lz4_messages", r.traffic.lz4_messages},
                      {"zstd_messages", r.traffic.zstd_messages}};
  j["split"] = deployment.plan().strategy;
  if (!r.predicted.empty()) j["predicted"] = to_json(r.predicted);
  if (!r.unpredictable.empty()) j["not_predicted"] = r.unpredictable;
  j["load_balance_factor"] = r.load_balance_factor;
  j["stolen_cpu_share"] = r.stolen;
  for (const NodeReport& node : deployment.nodes()) {
    j["nodes"].push_back({{"name", node.name},
                          {"first_layer", node.assignment.first_layer},
                          {"last_layer", node.assignment.last_layer - 1},
                          {"embedding", node.assignment.embedding},
                          {"head", node.assignment.head},
                          {"first_slice", node.assignment.slices.first},
                          {"last_slice", node.assignment.slices.last - 1},
                          {"first_expert_slice", node.assignment.slices.experts.first},
                          {"last_expert_slice", node.assignment.slices.experts.last - 1},
                          {"exchange", to_string(node.exchange)},
                          {"exchange_one_row_s", node.exchange_times.one_row_s},
                          {"exchange_many_rows_s", node.exchange_times.many_rows_s},
                          {"memory_bytes", node.memory_bytes}});
  }
  for (const EpochReport& epoch : deployment.epochs()) {
    j["epochs"].push_back({{"epoch", epoch.epoch},
                           {"workers", epoch.workers},
                           {"cause", one_line(epoch.cause)},
                           {"ready_s", epoch.ready_s},
                           {"weight_bytes", epoch.weight_bytes}});
  }
  // A byte-level model may end in the middle of a character.
  return dump_json(j, {.indent = 2});
}

/// Standard output. What cannot be written is not worth computing: the first failure asks for a stop.
class Output {
 public:
  void write(std::string_view text) {
    if (reason_ != 0) return;
    errno = 0;
    if (write_answer(text)) return;
    reason_ = errno != 0 ? errno : EIO;
    stop_.request_stop();
  }
  std::stop_source& stop() { return stop_; }
  bool failed() const { return reason_ != 0; }
  /// A reader that has had enough (`| head`) is no error: other programs end with a silent signal then.
  Result<int> end() const {
    if (reason_ == EPIPE) return kExitPipeClosed;
    return make_error(ErrorCode::kIo, "the text could not be written to standard output: {}", std::strerror(reason_));
  }

 private:
  int reason_ = 0;
  std::stop_source stop_;
};

/// Of what nodes did between two reports; 0 where the nodes changed meanwhile or do not say.
double balance_between(const std::vector<NodeReport>& before, const std::vector<NodeReport>& after) {
  std::map<std::string, double> busy_s;
  if (before.size() != after.size() || after.size() < 2) return 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (before[i].name != after[i].name) return 0;
    busy_s[after[i].name] = after[i].busy_s - before[i].busy_s;
  }
  std::vector<double> of_nodes;
  for (const auto& [name, seconds] : busy_s) of_nodes.push_back(seconds);
  return load_balance_factor(of_nodes);
}

/// The prompt as it is, or as what a user says in a conversation.
Status read_prompt(const GenerateCommand& command, const std::string& text, const OpenModel& model,
                   const Tokenizer& tokenizer, const std::optional<ChatModel>& chat, Request& request,
                   std::optional<AnswerParser>& parser) {
  if (!chat) return set_prompt(tokenizer, model.checkpoint.config, text, request);
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!command.chat.system.empty()) messages.push_back({{"role", "system"}, {"content", command.chat.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  BF_ASSIGN_OR_RETURN(ChatModel::Prompt prompt, chat->prompt(tokenizer, messages));
  request.prompt = std::move(prompt.tokens);
  request.shown = std::move(prompt.shown);
  if (prompt.answer.reasoning != nullptr) request.grammar_after = prompt.answer.reasoning->close;
  parser.emplace(prompt.answer);
  return {};
}

/// Reads settings and, for a conversation, the model's own.
Result<InferenceConfig> read_settings(const GenerateCommand& command, std::optional<ChatModel>& chat) {
  if (!command.as_chat) return read_config(command.flags);
  ChatSettings settings;
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_chat_config(command.flags, settings));
  BF_ASSIGN_OR_RETURN(chat, ChatModel::create(command.chat, settings));
  return config;
}

std::vector<Request> samples_of(const Request& request, int count) {
  std::vector<Request> samples(static_cast<std::size_t>(count), request);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i].sample_index = i;
  return samples;
}

/// What does not go together.
Status check(const GenerateCommand& command, const InferenceConfig& config) {
  if (!command.prompts.empty() && (command.as_chat || !config.prompt.empty())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--prompts {} has the prompts: --chat and --prompt do not go with it", command.prompts);
  }
  if (command.prompts.empty() && config.samples > 1 && !command.json) {
    return make_error(ErrorCode::kInvalidArgument, "samples is {}: more than 1 are given out with --json alone",
                      config.samples);
  }
  return {};
}

Result<int> run(const GenerateCommand& command) {
  std::optional<ChatModel> chat;
  BF_ASSIGN_OR_RETURN(const InferenceConfig config, read_settings(command, chat));
  BF_TRY(check(command, config));
  if (!command.prompts.empty()) return run_prompts(config, command.prompts);
  BF_ASSIGN_OR_RETURN(const auto grammar, read_grammar(config));
  BF_ASSIGN_OR_RETURN(OpenModel model, open_model(config));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(model.checkpoint.vocabulary));
  Request request = config.request;
  request.grammar = over_tokens(grammar, tokenizer);
  std::optional<AnswerParser> parser;
  BF_TRY(read_prompt(command, config.prompt, model, tokenizer, chat, request, parser));
  Report report;
  Output output;
  const std::stop_callback on_interrupt(interrupted(), [&] { output.stop().request_stop(); });
  if (config.echo && !command.json) output.write(config.prompt);
  const auto take = [&](const std::vector<AnswerEvent>& events) {
    if (!report.answer) report.answer.emplace();
    for (const AnswerEvent& event : events) {
      report.answer->add(event);
      if (command.json || event.kind == AnswerEvent::Kind::kReasoning) continue;
      output.write(event.kind == AnswerEvent::Kind::kContent ? event.text : dump_json(call_message(event.call)) + "\n");
    }
  };
  const TextSink sink = [&](std::size_t index, std::string_view text) {
    if (index > 0) return;
    if (parser) return take(parser->push(text));
    if (!command.json) output.write(text);
  };
  report.prompt_tokens = request.encoded.empty() ? request.prompt.size() : request.encoded.size();
  report.load_s = model.load_s;
  GenerateOptions options{
      .prefill_chunk = config.prefill_chunk, .context = model.context(), .vocab = model.checkpoint.config.vocab};
  BF_ASSIGN_OR_RETURN(options.drafter, open_drafter(config, model.checkpoint));
  const std::uint64_t wire_before = model.deployment->wire_bytes();  // asks the nodes, also for what nodes() tells
  const std::vector<NodeReport> before = model.deployment->nodes();
  const RunShape expected{
      .prompt = static_cast<int>(report.prompt_tokens), .generated = request.tokens_max, .chunk = config.prefill_chunk};
  report.unpredictable = model.deployment->unpredictable(expected);
  if (!report.unpredictable.empty() && !config.quiet) {
    std::fprintf(stderr, "%s\n", report.unpredictable.c_str());
  }
  const StolenTime generating;
  const CpuShortage shortage;
  BF_ASSIGN_OR_RETURN(std::vector<Generation> generations,
                      generate(model.deployment->pipeline(), tokenizer, samples_of(request, config.samples), options,
                               sink, output.stop().get_token()));
  if (parser) take(parser->finish());
  if (output.failed()) return output.end();
  // A first epoch has read what it needs of the file; later ones read it again.
  if (model.deployment->epochs().size() > 1) BF_TRY(checkpoint_unchanged(model.checkpoint.path));
  report.generation = std::move(generations[0]);
  report.further.assign(std::move_iterator(generations.begin() + 1), std::move_iterator(generations.end()));
  report.wire_bytes = model.deployment->wire_bytes() - wire_before;
  report.traffic = model.deployment->traffic();
  report.load_balance_factor = balance_between(before, model.deployment->nodes());
  report.stolen = generating.share();
  report.disturbance = generating.sentence();
  RunShape actual = expected;
  actual.generated = static_cast<int>(report.generation.tokens.size());
  if (const auto speeds = predicted_speeds(*model.deployment, actual); report.unpredictable.empty() && speeds) {
    report.predicted = judge(*speeds, report.measured(), shortage_of(shortage, *model.deployment));
  }
  output.write(command.json ? to_json(config, report, *model.deployment, tokenizer) + "\n" : "\n");
  if (output.failed()) return output.end();
  if (!config.quiet) print_summary(report, config, *model.deployment);
  return report.generation.reason == FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

}  // namespace

void add_generate(Command app, Action& action) {
  auto sub = app.add_subcommand("generate", "Continue a text, on this machine or split over several");
  auto command = std::make_shared<GenerateCommand>();
  add_inference_flags(sub, command->flags);
  command->flags.keys.add(sub, text_keys());
  sub.add_flag("--json", command->json, "One JSON object on stdout instead of the text");
  sub.add_option("--prompts", command->prompts,
                 "A file with a JSON object on each line, \"-\" for stdin: {\"prompt\": \"...\"}, and the settings in "
                 "which the text differs, such as \"tokens\" or \"seed\". Computed side by side, an object for each on "
                 "stdout");
  sub.add_flag("--chat", command->as_chat,
               "The prompt is what a user says; the model's chat template makes its text of it, and reasoning is left "
               "out. Sampling is as the model's files say unless flags say otherwise")
      .group("The conversation");
  add_chat_flags(sub, command->chat);
  sub.footer(
      "A model is needed: -m FILE, or `model` in the file of -c. Every key of that file is a flag, and the other way "
      "round. Examples:\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" -n 100\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" --workers 127.0.0.1:7001,127.0.0.1:7002\n"
      "  butterfly generate -m model.gguf --chat --system \"Answer briefly.\" -p \"Why is the sky blue?\"\n"
      "  butterfly generate -m model.gguf --chat -p \"Name a colour.\" --regex \"red|green|blue\"\n"
      "  butterfly generate -c settings.toml --temp 0.8 --seed 7");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
