// butterfly bench serve: requests that come when they come, to any OpenAI-compatible server, and how they were served.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <semaphore>
#include <thread>

#include "bench/bench.h"
#include "bench/serve/stream_client.h"
#include "butterfly/base/clock.h"
#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"

namespace butterfly::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::ptrdiff_t kUnderWayMax = 2048;  // threads; further requests are late, and the report says so

struct BenchServe {
  std::string url = "http://127.0.0.1:8080";
  std::string authority, key_file, model, conversations;
  double rate = 1;
  int burst = 1;
  int requests = 100;
  int prompt_words = 128;
  int answer_tokens = 64;
  int shared_words = 0;
  float ttft_s = 1;
  float tpot_s = 0.1F;
  std::uint64_t seed = 1;
  bool json = false;
};

struct PlannedRequest {
  double at_s = 0;
  std::string path{};
  std::string body{};
};

struct Served {
  StreamTimes times{};
  double late_s = 0;  // that it was sent after its time

  bool ok() const { return times.failure.empty() && times.texts > 0; }
  std::size_t tokens() const { return times.answer_tokens > 0 ? times.answer_tokens : times.texts; }
  double token_s() const {
    return tokens() > 1 ? (times.last_s - times.first_s) / static_cast<double>(tokens() - 1) : 0;
  }
};

/// About a token each.
std::string words(std::mt19937_64& random, int count) {
  static const char* const kWords[] = {"the",   "night", "comes", "and", "love", "will", "speak", "of", "a",    "house",
                                       "where", "no",    "light", "is",  "for",  "my",   "hand",  "to", "find", "you"};
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{}{}", i > 0 ? " " : "", kWords[random() % std::size(kWords)]);
  return text;
}

nlohmann::ordered_json common_body(const BenchServe& options) {
  nlohmann::ordered_json body = {{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"temperature", 0}};
  if (!options.model.empty()) body["model"] = options.model;
  return body;
}

/// A line of a file of conversations: messages, ShareGPT's conversations up to their last answer, or a prompt.
Result<PlannedRequest> read_line(const BenchServe& options, const std::string& line, std::size_t number) {
  const nlohmann::ordered_json json = parse_ordered_json(line);
  nlohmann::ordered_json body = common_body(options);
  body["max_tokens"] = options.answer_tokens;
  if (json.is_object() && json.contains("max_tokens")) body["max_tokens"] = json["max_tokens"];
  if (json.is_object() && json.contains("prompt")) {
    body["prompt"] = json["prompt"];
    return PlannedRequest{.path = "/v1/completions", .body = dump_json(body)};
  }
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (json.is_object() && json.contains("messages")) messages = json["messages"];
  if (json.is_object() && json.contains("conversations") && json["conversations"].is_array()) {
    for (const auto& turn : json["conversations"]) {
      if (!turn.is_object() || !turn.contains("from") || !turn.contains("value")) continue;
      const bool user = turn["from"] == "human" || turn["from"] == "user";
      messages.push_back({{"role", user ? "user" : "assistant"}, {"content", turn["value"]}});
    }
  }
  while (!messages.empty() && messages.back().is_object() && messages.back().contains("role") &&
         messages.back()["role"] == "assistant") {
    messages.erase(messages.size() - 1);
  }
  if (!messages.is_array() || messages.empty()) {
    return make_error(ErrorCode::kBadData, "{}: line {} has neither messages nor conversations nor a prompt",
                      options.conversations, number);
  }
  body["messages"] = std::move(messages);
  return PlannedRequest{.path = "/v1/chat/completions", .body = dump_json(body)};
}

Result<std::vector<PlannedRequest>> plan_requests(const BenchServe& options) {
  std::mt19937_64 random(options.seed);
  std::vector<PlannedRequest> given;
  if (!options.conversations.empty()) {
    std::ifstream file(options.conversations);
    if (!file) return make_error(ErrorCode::kNotFound, "{}: cannot be read", options.conversations);
    std::size_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (line.empty()) continue;
      BF_ASSIGN_OR_RETURN(PlannedRequest one, read_line(options, line, number));
      given.push_back(std::move(one));
    }
    if (given.empty()) return make_error(ErrorCode::kBadData, "{}: has no line", options.conversations);
  }
  const std::string shared = words(random, options.shared_words);
  std::vector<PlannedRequest> planned;
  double now_s = 0;
  for (int i = 0; i < options.requests; ++i) {
    if (i > 0 && i % options.burst == 0 && options.rate > 0) {
      const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
      now_s -= std::log1p(-uniform) * options.burst / options.rate;
    }
    PlannedRequest one;
    if (!given.empty()) {
      one = given[static_cast<std::size_t>(i) % given.size()];
    } else {
      nlohmann::ordered_json body = common_body(options);
      // Half to one and a half times the length that was asked for.
      const int count =
          options.prompt_words / 2 + static_cast<int>(random() % (static_cast<unsigned>(options.prompt_words) + 1));
      body["prompt"] = shared + (shared.empty() ? "" : " ") + words(random, std::max(1, count));
      body["max_tokens"] = options.answer_tokens;
      body["ignore_eos"] = true;
      one = {.path = "/v1/completions", .body = dump_json(body)};
    }
    one.at_s = now_s;
    planned.push_back(std::move(one));
  }
  return planned;
}

std::vector<Served> serve_all(const StreamTarget& target, const std::vector<PlannedRequest>& planned, double& seconds) {
  std::vector<Served> served(planned.size());
  std::vector<std::thread> threads;
  std::counting_semaphore<kUnderWayMax> room(kUnderWayMax);
  std::mutex mutex;
  std::size_t done = 0;
  const bool show = isatty(STDERR_FILENO) != 0;
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < planned.size() && !interrupted().stop_requested(); ++i) {
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(planned[i].at_s)));
    room.acquire();
    threads.emplace_back([&, i] {
      served[i].late_s = seconds_since(begin) - planned[i].at_s;
      served[i].times = time_stream(target, planned[i].path, planned[i].body);
      room.release();
      const std::lock_guard lock(mutex);
      ++done;
      if (show) std::fprintf(stderr, "\r%zu of %zu requests", done, planned.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (show) std::fprintf(stderr, "\r\033[K");
  served.resize(threads.size());
  seconds = seconds_since(begin);
  return served;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

/// A quantile with its 95 % interval, from 1000 resamples.
nlohmann::ordered_json quantile_json(const std::vector<double>& values, double share) {
  std::mt19937_64 random(7);
  std::vector<double> estimates;
  std::vector<double> drawn(values.size());
  for (int i = 0; i < 1000 && !values.empty(); ++i) {
    for (double& value : drawn) value = values[random() % values.size()];
    estimates.push_back(quantile(drawn, share));
  }
  return {
      {"value", quantile(values, share)}, {"low", quantile(estimates, 0.025)}, {"high", quantile(estimates, 0.975)}};
}

nlohmann::ordered_json times_json(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  nlohmann::ordered_json json = {{"mean", values.empty() ? 0 : sum / static_cast<double>(values.size())}};
  for (const auto& [name, share] : {std::pair("p50", 0.5), std::pair("p95", 0.95), std::pair("p99", 0.99)}) {
    json[name] = quantile_json(values, share);
  }
  return json;
}

nlohmann::ordered_json report(const BenchServe& options, const std::vector<Served>& served, double seconds) {
  std::vector<double> first, token, whole;
  std::map<std::string, int> failures;
  std::size_t prompt_tokens = 0, answer_tokens = 0, good = 0;
  double late_s = 0;
  for (const Served& one : served) {
    late_s = std::max(late_s, one.late_s);
    if (!one.ok()) {
      ++failures[one.times.failure.empty() ? "no text came" : one.times.failure];
      continue;
    }
    first.push_back(one.times.first_s);
    whole.push_back(one.times.last_s);
    if (one.tokens() > 1) token.push_back(one.token_s());
    prompt_tokens += one.times.prompt_tokens;
    answer_tokens += one.tokens();
    good += one.times.first_s <= options.ttft_s && one.token_s() <= options.tpot_s ? 1 : 0;
  }
  nlohmann::ordered_json json = {{"url", options.url},         {"requests", served.size()}, {"completed", whole.size()},
                                 {"rate_asked", options.rate}, {"burst", options.burst},    {"seconds", seconds},
                                 {"seed", options.seed}};
  json["requests_per_s"] = static_cast<double>(whole.size()) / seconds;
  json["prompt_tokens_per_s"] = static_cast<double>(prompt_tokens) / seconds;
  json["answer_tokens_per_s"] = static_cast<double>(answer_tokens) / seconds;
  json["goodput_per_s"] = static_cast<double>(good) / seconds;
  json["within_goals"] = served.empty() ? 0 : static_cast<double>(good) / static_cast<double>(served.size());
  json["goals"] = {{"time_to_first_token_s", options.ttft_s}, {"time_per_token_s", options.tpot_s}};
  json["sent_late_s_max"] = late_s;
  json["time_to_first_token_s"] = times_json(first);
  json["time_per_token_s"] = times_json(token);
  json["request_s"] = times_json(whole);
  json["failures"] = nlohmann::ordered_json::object();
  for (const auto& [why, count] : failures) json["failures"][why] = count;
  return json;
}

void print_report(const nlohmann::ordered_json& json) {
  const auto number = [&json](const char* name) { return json[name].get<double>(); };
  std::printf("%.0f of %.0f requests in %.1f s: %.2f requests/s, %.1f answer tokens/s, %.1f prompt tokens/s\n",
              number("completed"), number("requests"), number("seconds"), number("requests_per_s"),
              number("answer_tokens_per_s"), number("prompt_tokens_per_s"));
  for (const char* name : {"time_to_first_token_s", "time_per_token_s", "request_s"}) {
    std::printf("%-22s", name);
    for (const char* share : {"p50", "p95", "p99"}) {
      const auto& value = json[name][share];
      std::printf("  %s %.3f (%.3f-%.3f)", share, value["value"].get<double>(), value["low"].get<double>(),
                  value["high"].get<double>());
    }
    std::printf("\n");
  }
  std::printf("within the goals: %.1f %%, %.2f requests/s\n", 100 * number("within_goals"), number("goodput_per_s"));
  for (const auto& [why, count] : json["failures"].items()) {
    std::printf("%d failed: %s\n", count.get<int>(), one_line(why).c_str());
  }
}

Status run_bench_serve(const BenchServe& options) {
  BF_ASSIGN_OR_RETURN(StreamTarget target, parse_target(options.url, options.authority));
  if (!options.key_file.empty()) {
    std::ifstream file(options.key_file);
    if (!std::getline(file, target.key)) {
      return make_error(ErrorCode::kNotFound, "{}: has no line with a key", options.key_file);
    }
  }
  BF_ASSIGN_OR_RETURN(const std::vector<PlannedRequest> planned, plan_requests(options));
  double seconds = 0;
  const std::vector<Served> served = serve_all(target, planned, seconds);
  const nlohmann::ordered_json json = report(options, served, seconds);
  if (options.json) {
    print_json(json);
  } else {
    print_report(json);
  }
  if (json["completed"] != 0) return {};
  return make_error(ErrorCode::kUnavailable, "none of {} requests was served: {}", served.size(),
                    served.empty() ? "interrupted" : served.front().times.failure);
}

}  // namespace

void add_bench_serve(Command bench, Action& action) {
  auto sub = bench.add_subcommand("serve", "Load on an OpenAI-compatible server, and how it bears it");
  auto options = std::make_shared<BenchServe>();
  sub.add_option("--url", options->url, "http://HOST:PORT or https://HOST:PORT").show_default();
  sub.add_option("--ca", options->authority, "PEM file of certificates to trust (default: the system's)");
  sub.add_option("--key-file", options->key_file, "File whose first line is the key");
  sub.add_option("--model", options->model, "Name of the model (default: the request has none)");
  sub.add_option("--rate", options->rate, "Requests a second on average, at random times; 0: all at once")
      .in_range(0.0, 1e6)
      .show_default();
  sub.add_option("--burst", options->burst, "Requests that come together").in_range(1, 10'000).show_default();
  sub.add_option("--requests", options->requests, "How many").in_range(1, 100'000).show_default();
  sub.add_option("--prompt-words", options->prompt_words, "Words of a prompt, on average, each about a token")
      .in_range(1, 1 << 20)
      .show_default();
  sub.add_option("--shared-words", options->shared_words, "Words with which all prompts begin")
      .in_range(0, 1 << 20)
      .show_default();
  sub.add_option("--answer-tokens", options->answer_tokens, "Tokens of an answer").in_range(1, 1 << 20).show_default();
  sub.add_option("--conversations", options->conversations,
                 "JSONL file instead: lines with messages, ShareGPT's conversations, or a prompt");
  sub.add_option("--ttft", options->ttft_s, "Goal: seconds to the first token").in_range(0.0, 1e6).show_default();
  sub.add_option("--tpot", options->tpot_s, "Goal: seconds for each token after it").in_range(0.0, 1e6).show_default();
  sub.add_option("--seed", options->seed, "Of times and prompts").whole_number().show_default();
  sub.footer(
      "Requests are sent at their time, whether those before were answered or not. Intervals are of 95 %, by "
      "resampling. Example:\n"
      "  butterfly bench serve --url http://127.0.0.1:8080 --rate 4 --requests 200 --ttft 0.5 --tpot 0.05 --json");
  finish_bench(sub, action, options, &run_bench_serve);
}

}  // namespace butterfly::app
