#include "generate/prompts.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/infer/config/inference_keys.h"
#include "butterfly/infer/scheduler/scheduler.h"
#include "butterfly/trace/trace.h"
#include "commands.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;

/// The value as the alternative that the key has.
Result<KeyValue> value_of(const Json& json, const KeyValue& kind) {
  if (json.is_boolean() && std::holds_alternative<bool>(kind)) return KeyValue(json.get<bool>());
  if (json.is_string() && std::holds_alternative<std::string>(kind)) return KeyValue(json.get<std::string>());
  if (json.is_number() && std::holds_alternative<double>(kind)) return KeyValue(json.get<double>());
  const bool texts = json.is_array() && std::ranges::all_of(json, [](const Json& each) { return each.is_string(); });
  if (texts && std::holds_alternative<std::vector<std::string>>(kind)) {
    return KeyValue(json.get<std::vector<std::string>>());
  }
  if (json.is_number_integer()) {
    if (const auto value = parse_value(json.dump(), kind)) return *value;
  }
  return make_error(ErrorCode::kInvalidArgument, "expected {}", kind_of(kind));
}

/// What one line asks for.
Result<InferenceConfig> config_of(const InferenceConfig& common, const std::string& line) {
  const Json json = parse_ordered_json(line);
  if (json.is_discarded()) return make_error(ErrorCode::kInvalidArgument, "this is no JSON");
  if (!json.is_object() || !json.contains("prompt")) {
    return make_error(ErrorCode::kInvalidArgument, "expected an object with a \"prompt\"");
  }
  InferenceConfig config = common;
  for (const auto& [name, value] : json.items()) {
    const auto key = std::ranges::find_if(
        text_keys(), [&](const InferenceKey& k) { return k.name == name || (!name.empty() && k.alias == name); });
    if (key == text_keys().end()) {
      return make_error(ErrorCode::kInvalidArgument, "\"{}\" is no setting of a text; see `butterfly generate --help`",
                        name);
    }
    Result<KeyValue> read = value_of(value, key->get(config));
    const Status status = read ? key->set(config, *read) : tl::unexpected(read.error());
    if (!status) return make_error(status.error().code, "\"{}\": {}", name, status.error().message);
  }
  BF_TRY(validate(config));
  return config;
}

Result<std::vector<Request>> read_requests(const InferenceConfig& common, const std::string& path, OpenModel& model,
                                           const Tokenizer& tokenizer) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return make_error(ErrorCode::kIo, "{} cannot be read: {}", path, std::strerror(errno));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::vector<Request> requests;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto in_line = [&](const Error& error) {
      return tl::unexpected(Error{error.code, fmt::format("{}, line {}: {}", path, number, error.message)});
    };
    const Result<InferenceConfig> config = config_of(common, line);
    if (!config) return in_line(config.error());
    Request request = config->request;
    const Status status = set_prompt(tokenizer, model.checkpoint.config, config->prompt, request);
    if (!status) return in_line(status.error());
    const auto grammar = read_grammar(*config);
    if (!grammar) return in_line(grammar.error());
    request.grammar = over_tokens(*grammar, tokenizer);
    // Several answers to one prompt are lines of their own.
    for (int sample = 0; sample < config->samples; ++sample) {
      request.sample_index = static_cast<std::uint64_t>(sample);
      requests.push_back(request);
    }
  }
  if (requests.empty()) return make_error(ErrorCode::kInvalidArgument, "{} has no line with a prompt", path);
  return requests;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

/// Answers on their way to standard output, in the order of their requests.
class Answers {
 public:
  explicit Answers(std::span<const Request> requests) : requests_(requests), ended_(requests.size()) {}

  void take(std::size_t index, Result<Generation> generation) {
    if (!generation && !failure_) failure_ = generation.error();
    ended_[index] = std::move(generation);
    for (; printed_ < ended_.size() && ended_[printed_]; ++printed_) print(printed_);
  }

  const std::optional<Error>& failure() const { return failure_; }
  bool closed() const { return closed_; }

  /// One line of times, and one of what there was to do.
  void print_summary(double seconds, const SchedulerStats& stats) const {
    std::vector<double> first;
    std::vector<double> each;
    for (const auto& ended : ended_) {
      if (!ended || !*ended || (**ended).tokens.empty()) continue;
      const Generation& text = **ended;
      first.push_back(text.first_token_s);
      if (text.tokens.size() < 2) continue;
      each.push_back((text.total_s - text.first_token_s) / static_cast<double>(text.tokens.size() - 1));
    }
    const auto three = [](const std::vector<double>& values) {
      return fmt::format("{} / {} / {}", format_seconds(percentile(values, 0.5)),
                         format_seconds(percentile(values, 0.95)), format_seconds(percentile(values, 0.99)));
    };
    std::fprintf(
        stderr,
        "%zu texts in %s, %.2f texts/s | %llu prompt tokens, %llu of them cached | %llu generated, %.1f tokens/s\n",
        first.size(), format_seconds(seconds).c_str(), static_cast<double>(first.size()) / seconds,
        static_cast<unsigned long long>(stats.prompt_tokens), static_cast<unsigned long long>(stats.cached_tokens),
        static_cast<unsigned long long>(stats.generated_tokens), static_cast<double>(stats.generated_tokens) / seconds);
    std::fprintf(stderr, "p50 / p95 / p99: first token %s | each further token %s\n", three(first).c_str(),
                 three(each).c_str());
    if (stats.drafted_tokens > 0) {
      std::fprintf(stderr, "%llu tokens guessed ahead, %llu of them came true\n",
                   static_cast<unsigned long long>(stats.drafted_tokens),
                   static_cast<unsigned long long>(stats.accepted_tokens));
    }
    if (stats.preempted > 0 || stats.recovered > 0) {
      std::fprintf(stderr, "%llu texts gave up their cache and began anew | %llu recoveries\n",
                   static_cast<unsigned long long>(stats.preempted), static_cast<unsigned long long>(stats.recovered));
    }
  }

 private:
  void print(std::size_t index) {
    const Result<Generation>& generation = *ended_[index];
    Json json{{"index", index}};
    if (generation) {
      json["text"] = generation->text;
      json["finish"] = to_string(generation->reason);
      json["prompt_tokens"] = requests_[index].prompt.size();
      json["cached_tokens"] = generation->cached_tokens;
      json["generated_tokens"] = generation->tokens.size();
      json["first_token_s"] = generation->first_token_s;
      json["total_s"] = generation->total_s;
    } else {
      json["error"] = generation.error().message;
    }
    const std::string line = dump_json(json) + "\n";
    closed_ = closed_ || std::fwrite(line.data(), 1, line.size(), stdout) != line.size() || std::fflush(stdout) != 0;
  }

  std::span<const Request> requests_;
  std::vector<std::optional<Result<Generation>>> ended_;
  std::size_t printed_ = 0;
  std::optional<Error> failure_;
  bool closed_ = false;
};

}  // namespace

Result<int> run_prompts(const InferenceConfig& config, const std::string& path) {
  BF_ASSIGN_OR_RETURN(OpenModel model, open_model(config));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(model.checkpoint.vocabulary));
  BF_ASSIGN_OR_RETURN(const std::vector<Request> requests, read_requests(config, path, model, tokenizer));
  BF_ASSIGN_OR_RETURN(std::shared_ptr<Drafter> drafter, open_drafter(config, model.checkpoint));
  Scheduler scheduler(model.deployment->pipeline(), tokenizer,
                      {.context = model.context(),
                       .vocab = model.checkpoint.config.vocab,
                       .rows_max = config.prefill_chunk,
                       .keep_prefixes = true,
                       .drafter = std::move(drafter)});
  Answers answers(requests);
  std::stop_source stop;
  const std::stop_callback on_interrupt(interrupted(), [&] { stop.request_stop(); });
  for (std::size_t i = 0; i < requests.size(); ++i) {
    RequestObserver observer;
    observer.done = [&answers, &stop, i](Result<Generation> generation) {
      answers.take(i, std::move(generation));
      if (answers.closed()) stop.request_stop();
    };
    const auto id = scheduler.submit({.request = requests[i]}, std::move(observer));
    if (!id) return make_error(id.error().code, "prompt {}: {}", i, id.error().message);
  }
  const std::uint64_t begin = trace::now_ns();
  const Status status = scheduler.run_until_idle(stop.get_token());
  const double seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  if (answers.closed()) return kExitPipeClosed;
  BF_TRY(status);
  if (!config.quiet) answers.print_summary(seconds, scheduler.stats());
  if (answers.failure()) return tl::unexpected(*answers.failure());
  return interrupted().stop_requested() ? kExitInterrupted : kExitOk;
}

}  // namespace butterfly::app
