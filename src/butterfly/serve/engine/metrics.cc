#include "butterfly/serve/engine/metrics.h"

#include <algorithm>

namespace butterfly {
namespace {

constexpr std::size_t kRecent = 4096;

void write_one(std::string& out, const std::string& name, const char* type, const std::string& help,
               const std::string& labels, double value) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n{}{} {}\n", name, help, name, type, name, labels, value);
}

/// A label's value, as the text format quotes it.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Histogram::Histogram(std::vector<double> borders) : borders_(std::move(borders)), counts_(borders_.size() + 1) {}

void Histogram::add(double value) {
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::lower_bound(borders_, value) - borders_.begin();
  ++counts_[static_cast<std::size_t>(at)];
  ++count_;
  sum_ += value;
  if (recent_.size() < kRecent) {
    recent_.push_back(value);
  } else {
    recent_[next_ % kRecent] = value;
  }
  ++next_;
}

void Histogram::write(const std::string& name, const std::string& help, const std::string& labels,
                      std::string& out) const {
  const std::lock_guard lock(mutex_);
  out += fmt::format("# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
  const char* const comma = labels.empty() ? "" : ",";
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < borders_.size(); ++i) {
    total += counts_[i];
    out += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, borders_[i], total);
  }
  out += fmt::format("{}_bucket{{{}{}le=\"+Inf\"}} {}\n", name, labels, comma, count_);
  const std::string braces = labels.empty() ? "" : "{" + labels + "}";
  out += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, braces, sum_, name, braces, count_);
}

double Histogram::quantile(double share) const {
  std::vector<double> values;
  {
    const std::lock_guard lock(mutex_);
    values = recent_;
  }
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

void Metrics::count_request(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
}

void Metrics::count_finished(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++finished_[reason];
}

void Metrics::write_scheduler(const SchedulerStats& stats, const std::string& model, std::string& out) const {
  const std::string labels = fmt::format("{{model_name=\"{}\"}}", quoted(model));
  struct Row {
    const char* name;
    const char* alias;  // as vLLM calls it; empty: it has none
    const char* type;
    const char* help;
    double value;
  };
  const auto number = [](auto value) { return static_cast<double>(value); };
  const double used = stats.cache_pages_max > 0 ? number(stats.cache_pages) / number(stats.cache_pages_max) : 0;
  const Row rows[] = {
      {"butterfly_requests_running", "vllm:num_requests_running", "gauge", "Texts being computed",
       number(stats.running)},
      {"butterfly_requests_waiting", "vllm:num_requests_waiting", "gauge", "Texts waiting for their turn",
       number(stats.waiting)},
      {"butterfly_requests_refused_total", "", "counter", "Texts refused because too many waited",
       number(stats.refused)},
      {"butterfly_requests_cancelled_total", "", "counter", "Texts that were cancelled", number(stats.cancelled)},
      {"butterfly_requests_failed_total", "", "counter", "Texts that failed", number(stats.failed)},
      {"butterfly_prompt_tokens_total", "vllm:prompt_tokens_total", "counter", "Tokens of prompts",
       number(stats.prompt_tokens)},
      {"butterfly_generated_tokens_total", "vllm:generation_tokens_total", "counter", "Tokens generated",
       number(stats.generated_tokens)},
      {"butterfly_prefix_queries_total", "vllm:prefix_cache_queries_total", "counter",
       "Tokens of prompts that were looked for in the cache", number(stats.prompt_tokens)},
      {"butterfly_prefix_hits_total", "vllm:prefix_cache_hits_total", "counter",
       "Tokens of prompts that were in the cache", number(stats.cached_tokens)},
      {"butterfly_cache_used", "vllm:kv_cache_usage_perc", "gauge", "Share of the cache that is in use, 0 to 1", used},
      {"butterfly_cache_pages", "", "gauge", "Pages of the cache that are in use", number(stats.cache_pages)},
      {"butterfly_cache_pages_kept", "", "gauge", "Of these, kept for prompts that begin alike",
       number(stats.cache_pages_kept)},
      {"butterfly_steps_total", "", "counter", "Steps of the pipeline", number(stats.steps)},
      {"butterfly_rows_total", "", "counter", "Rows of these steps", number(stats.rows)},
      {"butterfly_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total", "counter",
       "Tokens guessed ahead and computed", number(stats.drafted_tokens)},
      {"butterfly_accepted_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total", "counter",
       "Guessed tokens that came true", number(stats.accepted_tokens)},
      {"butterfly_preemptions_total", "vllm:num_preemptions_total", "counter",
       "Texts that gave up their cache for others", number(stats.preempted)},
      {"butterfly_replays_total", "", "counter", "Texts computed again after nodes changed", number(stats.recovered)},
      {"butterfly_busy_seconds_total", "", "counter", "Time with a step under way", stats.busy_s},
  };
  for (const Row& row : rows) {
    write_one(out, row.name, row.type, row.help, labels, row.value);
    if (*row.alias != 0) write_one(out, row.alias, row.type, row.help, labels, row.value);
  }
}

void Metrics::write_histograms(const std::string& model, std::string& out) const {
  const std::tuple<const char*, const char*, const char*, const Histogram&> histograms[] = {
      {"butterfly_time_to_first_token_seconds", "vllm:time_to_first_token_seconds", "Until the first token",
       first_token_s},
      {"butterfly_time_per_output_token_seconds", "vllm:time_per_output_token_seconds",
       "From token to token, the mean of each text", token_s},
      {"butterfly_inter_token_seconds", "vllm:inter_token_latency_seconds", "From each token to the next", gap_s},
      {"butterfly_request_seconds", "vllm:e2e_request_latency_seconds", "Until a text was whole", request_s},
      {"butterfly_request_queue_seconds", "vllm:request_queue_time_seconds", "Until a text's turn came", queue_s},
      {"butterfly_request_prefill_seconds", "vllm:request_prefill_time_seconds", "From then to its first token",
       prefill_s},
      {"butterfly_request_decode_seconds", "vllm:request_decode_time_seconds", "From its first token to its last",
       decode_s},
      {"butterfly_request_prompt_tokens", "vllm:request_prompt_tokens", "Tokens of prompts", prompt_tokens},
      {"butterfly_request_generated_tokens", "vllm:request_generation_tokens", "Tokens of texts", generated_tokens},
  };
  const std::string labels = fmt::format("model_name=\"{}\"", quoted(model));
  for (const auto& [name, alias, help, histogram] : histograms) {
    histogram.write(name, help, "", out);
    histogram.write(alias, help, labels, out);
    for (const auto& [suffix, share] : {std::pair("p50", 0.5), std::pair("p95", 0.95), std::pair("p99", 0.99)}) {
      write_one(out, fmt::format("{}_{}", name, suffix), "gauge", fmt::format("{}, of the latest 4096", help), "",
                histogram.quantile(share));
    }
  }
  token_s.write("vllm:request_time_per_output_token_seconds", "The mean of each text from token to token", labels, out);
}

std::string Metrics::text(const SchedulerStats& stats, const std::string& model, bool ready,
                          unsigned connections) const {
  std::string out;
  write_one(out, "butterfly_ready", "gauge", "Whether requests are computed", "", ready ? 1 : 0);
  write_one(out, "butterfly_connections", "gauge", "Open connections", "", connections);
  write_one(out, "butterfly_epochs_total", "counter", "Memberships of the cluster that began", "",
            static_cast<double>(epochs.load()));
  write_one(out, "butterfly_streams_resumed_total", "counter", "Streams that a reader came back to", "",
            static_cast<double>(streams_resumed.load()));
  write_one(out, "butterfly_requests_regenerated_total", "counter", "Requests computed again from the journal", "",
            static_cast<double>(regenerated.load()));
  write_one(out, "butterfly_hang_ups_total", "counter", "Clients that went away before their answer was whole", "",
            static_cast<double>(hang_ups.load()));
  write_scheduler(stats, model, out);
  write_histograms(model, out);
  const std::lock_guard lock(mutex_);
  out +=
      "# HELP butterfly_http_requests_total Answers by path and status\n# TYPE butterfly_http_requests_total counter\n";
  for (const auto& [key, count] : requests_) {
    out += fmt::format("butterfly_http_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  }
  for (const std::string name : {"butterfly_request_success_total", "vllm:request_success_total"}) {
    out += fmt::format("# HELP {} Texts by what ended them\n# TYPE {} counter\n", name, name);
    for (const auto& [reason, count] : finished_) {
      const std::string of_model = name.starts_with("vllm:") ? fmt::format("model_name=\"{}\",", quoted(model)) : "";
      out += fmt::format("{}{{{}finished_reason=\"{}\"}} {}\n", name, of_model, reason, count);
    }
  }
  return out;
}

}  // namespace butterfly
