#include "butterfly/infer/config/inference_keys.h"

#include <charconv>
#include <string>

#include "butterfly/infer/config/access_keys.h"
#include "butterfly/plan/partition/strategy.h"
#include "butterfly/wire/channel/codec.h"

namespace butterfly {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr KeyRole kDecides = KeyRole::kDecides;
constexpr const char* kModel = "The model";
constexpr const char* kNodes = "Nodes";
constexpr const char* kSplit = "How the work is shared out";
constexpr const char* kTransport = "What travels between nodes";
constexpr const char* kText = "The text";

#define BF_AT(member) BF_MEMBER(InferenceConfig, member)

void add_model(std::vector<InferenceKey>& keys) {
  keys.push_back(value_key({.name = "model",
                            .role = kDecides,
                            .help = "GGUF file, or Hugging Face directory",
                            .group = kModel,
                            .letter = 'm'},
                           BF_AT(model)));
  keys.push_back(value_key({.name = "threads",
                            .help = "Threads of each node in this process; 0: all cores, shared by the nodes",
                            .group = kModel,
                            .letter = 't',
                            .range = {0, 1024}},
                           BF_AT(deployment.compute.threads)));
  keys.push_back(value_key({.name = "context",
                            .role = kDecides,
                            .help = "Tokens that a prompt and its answer may have together; 0: what the model was made "
                                    "for, or what of it fits into memory",
                            .group = kModel,
                            .range = {0, 1 << 24}},
                           BF_AT(deployment.plan.context)));
  keys.push_back(
      choice_key({.name = "kv_type",
                  .role = kDecides,
                  .help = "Type of cached keys and values (auto: f32 for F32 models, else f16)",
                  .group = kModel},
                 BF_AT(deployment.compute.kv_type),
                 {{"auto", std::nullopt}, {"f32", DType::kF32}, {"f16", DType::kF16}, {"q8_0", DType::kQ8_0}}));
  keys.push_back(choice_key(
      {.name = "speculation",
       .help = "Tokens guessed ahead and computed together, where that saves time; the text stays the same. ngram: "
               "from what the text has said before",
       .group = kModel},
      BF_AT(speculation), {{"off", Speculation::kOff}, {"ngram", Speculation::kNgram}}));
  keys.push_back(value_key({.name = "draft_model",
                            .help = "The same, guessed by this smaller model with the same vocabulary, in this process",
                            .group = kModel},
                           BF_AT(draft_model)));
  keys.push_back(value_key({.name = "packed_cache",
                            .help = "Folder for packed weights of the nodes of this process: the next start maps "
                                    "them instead of reading and packing the model. Its files may be deleted at "
                                    "any time",
                            .group = kModel},
                           BF_AT(deployment.compute.packed_folder)));
  keys.push_back(value_key(
      {.name = "quiet", .help = "No progress and no summary on stderr", .group = kModel, .letter = 'q'}, BF_AT(quiet)));
}

void add_nodes(std::vector<InferenceKey>& keys) {
  keys.push_back(value_key({.name = "nodes",
                            .help = "Split over this number of nodes that are threads of this process",
                            .group = kNodes,
                            .range = {1, 256}},
                           BF_AT(deployment.nodes)));
  keys.push_back(
      value_key({.name = "workers", .help = "Split over worker processes: HOST:PORT of each", .group = kNodes},
                BF_AT(deployment.membership.workers)));
  keys.push_back(value_key({.name = "join_at",
                            .help = "HOST:PORT where workers may join at any time (butterfly worker --join HOST:PORT)",
                            .group = kNodes},
                           BF_AT(deployment.membership.join_at)));
  keys.push_back(time_key<milliseconds>({.name = "heartbeat",
                                         .help = "Milliseconds between two questions whether a worker lives",
                                         .group = kNodes,
                                         .range = {10, 60'000}},
                                        BF_AT(deployment.membership.cluster.heartbeat)));
  keys.push_back(time_key<milliseconds>({.name = "dead_after",
                                         .help = "Milliseconds of silence after which a worker is given up",
                                         .group = kNodes,
                                         .range = {50, 600'000}},
                                        BF_AT(deployment.membership.cluster.dead_after)));
  keys.push_back(time_key<seconds>({.name = "recover_within",
                                    .help = "Seconds to wait for a worker to come back or join where too few are left",
                                    .group = kNodes,
                                    .range = {0, 86'400}},
                                   BF_AT(deployment.timeouts.recover_within)));
  add_access_keys(keys, kNodes, BF_AT(deployment.access));
}

std::string strategy_names() {
  std::string names;
  for (const Strategy& strategy : strategies()) names += fmt::format("{}{}", names.empty() ? "" : ", ", strategy.name);
  return names;
}

Status set_strategy(InferenceConfig& config, const KeyValue& value) {
  const std::string& name = std::get<std::string>(value);
  if (!find_strategy(name)) {
    return make_error(ErrorCode::kInvalidArgument, "expected one of {}", strategy_names());
  }
  config.deployment.plan.strategy = name;
  return {};
}

void add_split(std::vector<InferenceKey>& keys) {
  keys.push_back(config_key<InferenceConfig>(
      {.name = "split",
       .help = "Strategy (auto: by prediction, or uniform where a speed is unknown): " + strategy_names(),
       .group = kSplit},
      [](const InferenceConfig& config) { return KeyValue(config.deployment.plan.strategy); }, set_strategy));
  keys.push_back(choice_key(
      {.name = "goal", .help = "What auto, topology, tensor and hybrid look for", .group = kSplit},
      BF_AT(deployment.plan.goal),
      {{"latency", PlanGoal::kLatency}, {"throughput", PlanGoal::kThroughput}, {"memory", PlanGoal::kMemory}}));
  keys.push_back(value_key({.name = "custom",
                            .help = "File of the plan that the split custom follows: lines of NODE FIRST-LAST",
                            .group = kSplit},
                           BF_AT(deployment.custom_file)));
  keys.push_back(value_key(
      {.name = "measure_links",
       .help = "Measure the links first, some tenths of a second each; splits that depend on links do so anyway",
       .group = kSplit},
      BF_AT(deployment.measure_links)));
}

void add_transport(std::vector<InferenceKey>& keys) {
  keys.push_back(choice_key({.name = "wire_type",
                             .role = kDecides,
                             .help = "Type of activations between nodes; all but f32 change the text",
                             .group = kTransport},
                            BF_AT(deployment.stage.wire_type),
                            {{"f32", DType::kF32}, {"f16", DType::kF16}, {"q8_0", DType::kQ8_0}}));
  keys.push_back(choice_key({.name = "compress",
                             .help = "Lossless packing of activations between machines (auto: where measured to save "
                                     "time)",
                             .group = kTransport},
                            BF_AT(deployment.stage.compression),
                            {{"off", Compression::kOff},
                             {"auto", Compression::kAuto},
                             {"lz4", Compression::kLz4},
                             {"zstd", Compression::kZstd}}));
}

KeyText text(const char* name, const char* help, char letter = 0) {
  return {.name = name, .role = kDecides, .help = help, .group = kText, .letter = letter};
}

/// Whole numbers from -1, which stands for none, or for all.
template <typename Access>
InferenceKey signed_key(KeyText about, Access at) {
  return config_key<InferenceConfig>(
      std::move(about),
      [at](const InferenceConfig& config) {
        return KeyValue(static_cast<std::int64_t>(at(const_cast<InferenceConfig&>(config))));
      },
      [at](InferenceConfig& config, const KeyValue& value) -> Status {
        constexpr std::int64_t kMost = 1'000'000'000;
        const std::int64_t number = std::get<std::int64_t>(value);
        if (number < -1 || number > kMost) {
          return make_error(ErrorCode::kInvalidArgument, "expected a whole number from -1 to {}", kMost);
        }
        at(config) = static_cast<int>(number);
        return {};
      });
}

/// The whole of `words` as a number.
template <typename T>
std::optional<T> number_of(std::string_view words) {
  T number{};
  const auto [end, error] = std::from_chars(words.data(), words.data() + words.size(), number);
  if (error != std::errc{} || end != words.data() + words.size()) return {};
  return number;
}

/// "15043:-100", "15043=2.5", and llama.cpp's "15043+1" and "15043-1".
Status add_logit_bias(std::string_view words, std::vector<LogitBias>& bias) {
  const std::size_t sign = words.find_first_of(":=+-");
  if (sign != std::string_view::npos) {
    std::string_view value = words.substr(words[sign] == '-' ? sign : sign + 1);
    if (value.starts_with('+')) value.remove_prefix(1);
    const auto id = number_of<std::int32_t>(words.substr(0, sign));
    const auto number = number_of<float>(value);
    if (id && number) {
      bias.push_back({TokenId(*id), *number});
      return {};
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "expected a token's id and a number from -100 to 100, as in 15043:-100");
}

InferenceKey logit_bias_key() {
  return config_key<InferenceConfig>(
      text("logit_bias", "ID:VALUE, added to that token's logit; -100 bans it, 100 leaves no others"),
      [](const InferenceConfig& config) -> KeyValue {
        std::vector<std::string> all;
        for (const auto& [token, value] : config.request.sampling.logit_bias) {
          all.push_back(fmt::format("{}:{}", token.value, value));
        }
        return all;
      },
      [](InferenceConfig& config, const KeyValue& value) -> Status {
        std::vector<LogitBias> bias;
        for (const auto& words : std::get<std::vector<std::string>>(value)) BF_TRY(add_logit_bias(words, bias));
        config.request.sampling.logit_bias = std::move(bias);
        return {};
      });
}

InferenceKey stop_tokens_key() {
  return config_key<InferenceConfig>(
      text("stop_token_ids", "End before a token with one of these ids"),
      [](const InferenceConfig& config) -> KeyValue {
        std::vector<std::string> all;
        for (const TokenId token : config.request.stop_tokens) all.push_back(fmt::format("{}", token.value));
        return all;
      },
      [](InferenceConfig& config, const KeyValue& value) -> Status {
        std::vector<TokenId> tokens;
        for (const auto& words : std::get<std::vector<std::string>>(value)) {
          const auto id = number_of<std::int32_t>(words);
          if (!id || *id < 0) return make_error(ErrorCode::kInvalidArgument, "expected ids of tokens, as in 2,13");
          tokens.emplace_back(*id);
        }
        config.request.stop_tokens = std::move(tokens);
        return {};
      });
}

void add_sampling(std::vector<InferenceKey>& keys) {
  keys.push_back(
      value_key(text("temp", "Temperature; 0: always the most likely token"), BF_AT(request.sampling.temperature)));
  keys.push_back(
      value_key(text("top_k", "Keep this number of the most likely tokens; 0: all"), BF_AT(request.sampling.top_k)));
  keys.push_back(
      value_key(text("top_p", "Keep the most likely tokens up to this probability"), BF_AT(request.sampling.top_p)));
  keys.push_back(
      value_key(text("min_p", "Drop tokens below this share of the best one"), BF_AT(request.sampling.min_p)));
  keys.push_back(value_key(text("repeat_penalty", "Divide logits of tokens that prompt or answer have; 1: off"),
                           BF_AT(request.sampling.repeat_penalty)));
  keys.push_back(signed_key(text("repeat_last_n", "Tokens that the repeat penalty looks back at; -1: all"),
                            BF_AT(request.sampling.repeat_window)));
  KeyText presence = text("presence_penalty", "Taken from logits of tokens that the answer has");
  KeyText frequency = text("frequency_penalty", "Taken from them for each time that it has them");
  presence.range = frequency.range = {-2, 2};
  keys.push_back(value_key(std::move(presence), BF_AT(request.sampling.presence_penalty)));
  keys.push_back(value_key(std::move(frequency), BF_AT(request.sampling.frequency_penalty)));
  keys.push_back(logit_bias_key());
  keys.push_back(wide_key(text("seed", "Same seed, same text: on any number of nodes"), BF_AT(request.sampling.seed)));
}

}  // namespace

const std::vector<InferenceKey>& running_keys() {
  static const std::vector<InferenceKey> keys = [] {
    std::vector<InferenceKey> all;
    add_model(all);
    add_nodes(all);
    add_split(all);
    add_transport(all);
    return all;
  }();
  return keys;
}

const std::vector<InferenceKey>& text_keys() {
  static const std::vector<InferenceKey> keys = [] {
    std::vector<InferenceKey> all;
    all.push_back(
        value_key(text("prompt", "Text to continue; empty: from the beginning-of-text token", 'p'), BF_AT(prompt)));
    all.push_back(value_key(text("tokens", "Tokens to generate at most", 'n'), BF_AT(request.tokens_max)));
    add_sampling(all);
    KeyText stop = text("stop", "End before this text; the flag may be given more than once");
    stop.list = ListForm::kRepeated;
    all.push_back(value_key(std::move(stop), BF_AT(request.stops)));
    all.push_back(stop_tokens_key());
    all.push_back(signed_key(
        text("logprobs", "With --json: log-probabilities of each token and of this number of best ones; -1: none"),
        BF_AT(request.sampling.logprobs)));
    all.push_back(value_key(text("json_schema", "Answer with JSON of this schema: a file, or the schema itself"),
                            BF_AT(json_schema)));
    all.push_back(value_key(text("json_object", "Answer with a JSON object"), BF_AT(json_object)));
    all.push_back(
        value_key(text("regex", "Answer with a text that this regular expression matches as a whole"), BF_AT(regex)));
    all.push_back(value_key(text("grammar", "Answer with a text of the grammar in this file, in llama.cpp's GBNF"),
                            BF_AT(grammar)));
    KeyText samples = text("samples", "Answers to one prompt, with draws of their own; only with --json more than 1");
    samples.range = {1, 1024};
    samples.alias = "n";
    all.push_back(value_key(std::move(samples), BF_AT(samples)));
    all.push_back(
        value_key(text("ignore_end", "Go on after the model's end-of-text token"), BF_AT(request.ignore_end)));
    all.push_back(
        value_key({.name = "prefill_chunk", .help = "Prompt tokens per step", .group = kText}, BF_AT(prefill_chunk)));
    all.push_back(
        value_key({.name = "echo", .help = "Print the prompt before its continuation", .group = kText}, BF_AT(echo)));
    return all;
  }();
  return keys;
}
#undef BF_AT

const std::vector<InferenceKey>& inference_keys() {
  static const std::vector<InferenceKey> keys = [] {
    std::vector<InferenceKey> all = running_keys();
    all.insert(all.end(), text_keys().begin(), text_keys().end());
    return all;
  }();
  return keys;
}

}  // namespace butterfly
