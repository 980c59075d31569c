// butterfly generate: continues a text. The text alone goes to stdout, as it comes; the summary to stderr.
#include "butterfly/infer/request/generate.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include "butterfly/base/json.h"
#include "butterfly/base/one_line.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/usage/stolen_time.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/plan/cost/load_balance.h"
#include "butterfly/wire/channel/codec.h"
#include "commands.h"
#include "shared/predicted.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

constexpr int kExitPipeClosed = 141;  // the reader of standard output went away: as a shell shows SIGPIPE

struct GenerateCommand {
  RunOptions run;
  std::string prompt;
  Request request;
  int prefill_chunk = 512;
  bool echo = false;
  bool json = false;
};

/// What the summary and --json report.
struct Report {
  Generation generation;
  std::size_t prompt_tokens = 0;
  std::uint64_t wire_bytes = 0;
  DataTraffic traffic;
  double load_s = 0;
  std::optional<Speeds> predicted;
  std::string unpredictable;       // why there is no prediction; said before the run
  double load_balance_factor = 0;  // of the nodes while they generated; 0: unknown
  double stolen = 0;               // share of the CPU time that the host took meanwhile
  std::string disturbance;         // the same as a sentence; empty where it is not worth saying

  Speeds measured() const { return {.prefill = prefill_tokens_per_s(), .decode = decode_tokens_per_s()}; }
  double prefill_tokens_per_s() const { return static_cast<double>(prompt_tokens) / generation.first_token_s; }
  double decode_tokens_per_s() const {
    const double seconds = generation.total_s - generation.first_token_s;
    const auto tokens = static_cast<double>(generation.tokens.size());
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0;
  }
  /// What payloads were packed with, mostly.
  std::string_view codec() const {
    if (traffic.lz4_messages + traffic.zstd_messages == 0) return to_string(Codec::kNone);
    return to_string(traffic.lz4_messages > traffic.zstd_messages ? Codec::kLz4 : Codec::kZstd);
  }
  double wire_bytes_per_token() const {
    return static_cast<double>(wire_bytes) / static_cast<double>(prompt_tokens + generation.tokens.size());
  }
};

/// ", slices 3-5 by shared memory"; empty for a whole stage.
std::string describe_slices(const NodeReport& node) {
  const SliceRange& slices = node.assignment.slices;
  if (slices.whole()) return {};
  const std::string range = fmt::format(", slices {}-{}", slices.first, slices.last - 1);
  if (node.exchange == ExchangeEngine::kNone) return range;
  return fmt::format("{} by {}, {} an exchange", range, to_string(node.exchange),
                     format_seconds(node.exchange_times.one_row_s));
}

void print_summary(const Report& r, const GenerateCommand& command, const Deployment& deployment) {
  std::fprintf(stderr,
               "\nprefill %zu tokens, %.1f tokens/s | decode %zu tokens, %.1f tokens/s | first token %s | load %s\n",
               r.prompt_tokens, r.prefill_tokens_per_s(), r.generation.tokens.size(), r.decode_tokens_per_s(),
               format_seconds(r.generation.first_token_s).c_str(), format_seconds(r.load_s).c_str());
  if (r.predicted) std::fprintf(stderr, "%s\n", compare(*r.predicted, r.measured()).c_str());
  std::fprintf(
      stderr, "wire %s per token | split %s%s | ended by %s\n",
      format_bytes(static_cast<std::uint64_t>(r.wire_bytes_per_token())).c_str(), deployment.plan().strategy.c_str(),
      r.load_balance_factor > 0 ? fmt::format(" | load_balance_factor {:.2f}", r.load_balance_factor).c_str() : "",
      to_string(r.generation.reason));
  if (!r.disturbance.empty()) std::fprintf(stderr, "disturbed: %s\n", r.disturbance.c_str());
  if (r.traffic.bytes_saved > 0) {
    std::fprintf(stderr, "payloads were packed by %s: %s instead of %s, the same text\n",
                 std::string(r.codec()).c_str(), format_bytes(r.traffic.bytes).c_str(),
                 format_bytes(r.traffic.bytes + r.traffic.bytes_saved).c_str());
  }
  if (command.run.wire_type != "f32" && deployment.nodes().size() > 1) {
    std::fprintf(stderr, "activations were rounded to %s between nodes: not the text of one process\n",
                 command.run.wire_type.c_str());
  }
  for (const NodeReport& node : deployment.nodes()) {
    std::fprintf(stderr, "  %-22s layers %d-%d%s%s%s, %s\n", one_line(node.name).c_str(), node.assignment.first_layer,
                 node.assignment.last_layer - 1, node.assignment.embedding ? " + embedding" : "",
                 node.assignment.head ? " + head" : "", describe_slices(node).c_str(),
                 format_bytes(node.memory_bytes).c_str());
  }
}

std::string to_json(const GenerateCommand& command, const Report& r, const Deployment& deployment) {
  nlohmann::ordered_json j;
  j["prompt"] = command.prompt;
  j["text"] = r.generation.text;
  for (const TokenId token : r.generation.tokens) j["tokens"].push_back(token.value);
  j["finish_reason"] = to_string(r.generation.reason);
  j["prompt_tokens"] = r.prompt_tokens;
  j["generated_tokens"] = r.generation.tokens.size();
  j["prefill_tokens_per_s"] = r.prefill_tokens_per_s();
  j["decode_tokens_per_s"] = r.decode_tokens_per_s();
  j["time_to_first_token_s"] = r.generation.first_token_s;
  j["load_s"] = r.load_s;
  j["wire_bytes_per_token"] = r.wire_bytes_per_token();
  j["wire_type"] = command.run.wire_type;
  j["lossy"] = command.run.wire_type != "f32" && deployment.nodes().size() > 1;
  j["compression"] = {{"mode", command.run.compress},
                      {"codec", r.codec()},
                      {"wire_bytes_before", r.traffic.bytes + r.traffic.bytes_saved},
                      {"wire_bytes_after", r.traffic.bytes},
                      {"lz4_messages", r.traffic.lz4_messages},
                      {"zstd_messages", r.traffic.zstd_messages}};
  j["split"] = deployment.plan().strategy;
  if (r.predicted) j["predicted"] = to_json(*r.predicted, r.measured());
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
                          {"exchange", to_string(node.exchange)},
                          {"exchange_one_row_s", node.exchange_times.one_row_s},
                          {"exchange_many_rows_s", node.exchange_times.many_rows_s},
                          {"memory_bytes", node.memory_bytes}});
  }
  for (const EpochReport& epoch : deployment.epochs()) {
    j["epochs"].push_back({{"epoch", epoch.epoch},
                           {"workers", epoch.workers},
                           {"cause", epoch.cause},
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
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
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

Result<int> run(GenerateCommand& command) {
  const StolenTime loading;
  BF_ASSIGN_OR_RETURN(OpenModel model, open_model(command.run, 1));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(model.checkpoint.vocabulary));
  BF_ASSIGN_OR_RETURN(command.request.prompt, encode_prompt(tokenizer, command.prompt));
  Output output;
  const std::stop_callback on_interrupt(interrupted(), [&] { output.stop().request_stop(); });
  if (command.echo && !command.json) output.write(command.prompt);
  const TextSink sink = [&](std::size_t, std::string_view text) {
    if (!command.json) output.write(text);
  };
  Report report;
  report.prompt_tokens = command.request.prompt.size();
  report.load_s = model.load_s;
  const GenerateOptions options{.prefill_chunk = command.prefill_chunk, .context = model.checkpoint.config.context};
  const std::uint64_t wire_before = model.deployment->wire_bytes();  // asks the nodes, also for what nodes() tells
  const std::vector<NodeReport> before = model.deployment->nodes();
  const RunShape expected{.prompt = static_cast<int>(report.prompt_tokens),
                          .generated = command.request.tokens_max,
                          .chunk = command.prefill_chunk};
  report.unpredictable = why_not_predicted(*model.deployment, expected, loading);
  if (!report.unpredictable.empty() && !command.run.quiet) {
    std::fprintf(stderr, "%s\n", report.unpredictable.c_str());
  }
  const StolenTime generating;
  BF_ASSIGN_OR_RETURN(std::vector<Generation> generations,
                      generate(model.deployment->pipeline(), tokenizer, std::span(&command.request, 1), options, sink,
                               output.stop().get_token()));
  if (output.failed()) return output.end();
  // A first epoch has read what it needs of the file; later ones read it again.
  if (model.deployment->epochs().size() > 1) BF_TRY(files_unchanged(model.checkpoint.path));
  report.generation = std::move(generations[0]);
  report.wire_bytes = model.deployment->wire_bytes() - wire_before;
  report.traffic = model.deployment->traffic();
  report.load_balance_factor = balance_between(before, model.deployment->nodes());
  report.stolen = generating.share();
  report.disturbance = generating.sentence();
  RunShape actual = expected;
  actual.generated = static_cast<int>(report.generation.tokens.size());
  if (report.unpredictable.empty()) report.predicted = predicted_speeds(*model.deployment, actual);
  output.write(command.json ? to_json(command, report, *model.deployment) + "\n" : "\n");
  if (output.failed()) return output.end();
  if (!command.run.quiet) print_summary(report, command, *model.deployment);
  return report.generation.reason == FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

}  // namespace

void add_generate(Command app, Action& action) {
  auto sub = app.add_subcommand("generate", "Continue a text, on this machine or split over several");
  auto command = std::make_shared<GenerateCommand>();
  add_run_options(sub, command->run);
  sub.add_option("-p,--prompt", command->prompt, "Text to continue; empty: from the beginning-of-text token");
  sub.add_option("-n,--tokens", command->request.tokens_max, "Tokens to generate at most").show_default();
  SamplingOptions& sampling = command->request.sampling;
  sub.add_option("--temp", sampling.temperature, "Temperature; 0: always the most likely token").show_default();
  sub.add_option("--top-k", sampling.top_k, "Keep the K most likely tokens; 0: all").show_default();
  sub.add_option("--top-p", sampling.top_p, "Keep the most likely tokens up to this probability").show_default();
  sub.add_option("--min-p", sampling.min_p, "Drop tokens below this share of the best one").show_default();
  sub.add_option("--repeat-penalty", sampling.repeat_penalty, "Divide logits of the last 64 tokens; 1: off")
      .show_default();
  sub.add_option("--seed", sampling.seed, "Same seed, same text: on any number of nodes").whole_number().show_default();
  sub.add_option("--stop", command->request.stops, "End before this text; may be given more than once")
      .takes_one_each_time();
  sub.add_flag("--ignore-end", command->request.ignore_end, "Go on after the model's end-of-text token");
  sub.add_option("--prefill-chunk", command->prefill_chunk, "Prompt tokens per step").show_default();
  sub.add_flag("--echo", command->echo, "Print the prompt before its continuation");
  sub.add_flag("--json", command->json, "One JSON object on stdout instead of the text");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
