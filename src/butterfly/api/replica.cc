#include "butterfly/api/replica.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>

#include "butterfly/base/units.h"

namespace butterfly {
namespace {

/// Least over greatest time that the nodes of these shares need for a step; 0 where one is unknown.
double factor_of(std::span<const NodeShare> shares, double NodeShare::*seconds) {
  std::map<std::string, double> node_s;
  double least = std::numeric_limits<double>::infinity();
  double greatest = 0.0;
  for (const NodeShare& share : shares) {
    if (!(share.*seconds > 0.0)) return 0.0;
    node_s[share.node_id] += share.*seconds;
  }
  for (const auto& [node, needed_s] : node_s) {
    least = std::min(least, needed_s);
    greatest = std::max(greatest, needed_s);
  }
  return greatest > 0.0 ? least / greatest : 0.0;
}

}  // namespace

Replica::Replica(std::unique_ptr<Deployment> deployed, const Tokenizer& tokenizer, const SchedulerOptions& options)
    : deployment_(std::move(deployed)),
      scheduler_(deployment_->pipeline(), tokenizer, options),
      thread_([this](const std::stop_token& stop) { compute(stop); }) {}

void Replica::compute(const std::stop_token& stop) {
  while (scheduler_.wait_for_requests(stop)) {
    const std::lock_guard lock(computing_);
    // An error has ended all requests, each was told; the next ones are tried again.
    std::ignore = scheduler_.run_until_idle(stop);
  }
}

namespace {

/// What a text has so far, on its way from the thread that computes to the one that asked for it.
class Answer {
 public:
  /// `ended` is called by the thread that computes.
  explicit Answer(std::function<void()> ended) : ended_(std::move(ended)) {}

  RequestObserver observer() {
    const auto take = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      text_ += text;
      changed_.notify_one();
    };
    return {.token = [take](const TokenEvent& event) { take(event.text); },
            .rest = take,
            .done =
                [this](Result<Generation> generation) {
                  if (ended_) ended_();
                  const std::lock_guard lock(mutex_);
                  generation_ = std::move(generation);
                  changed_.notify_one();
                }};
  }

  /// Until the text has ended, gives `sink` what there is.
  Result<Generation> wait(const std::function<void(std::string_view)>& sink) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !text_.empty() || generation_; });
      const std::string text = std::exchange(text_, {});
      if (text.empty()) return std::move(*generation_);
      lock.unlock();
      sink(text);
    }
  }

 private:
  const std::function<void()> ended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::optional<Result<Generation>> generation_;
};

}  // namespace

Result<GeneratedText> Replica::generate(const Request& request, const std::function<void(std::string_view)>& sink,
                                        std::stop_token stop) {
  const std::uint64_t wire_before = wire_bytes_;
  std::uint64_t wire_after = wire_before;
  Answer answer([&] { wire_after = wire_bytes_ = deployment_->wire_bytes(); });
  BF_ASSIGN_OR_RETURN(const Scheduler::Id id, scheduler_.submit({.request = request}, answer.observer()));
  const std::stop_callback on_stop(std::move(stop), [&] { scheduler_.cancel(id); });
  BF_ASSIGN_OR_RETURN(Generation generation, answer.wait(sink));
  GeneratedText result{.text = std::move(generation.text),
                       .tokens = {},
                       .finish = to_string(generation.reason),
                       .first_token_s = generation.first_token_s,
                       .total_s = generation.total_s,
                       .wire_bytes = wire_after - wire_before};
  for (TokenId token : generation.tokens) result.tokens.push_back(token.value);
  return result;
}

std::string Replica::describe() const {
  const std::lock_guard lock(computing_);
  std::string text;
  for (const NodeReport& node : deployment_->nodes()) {
    text += fmt::format("{}{}: layers {}-{}{}{}, {}\n", node.name, suffix, node.assignment.first_layer,
                        node.assignment.last_layer - 1, node.assignment.embedding ? " + embedding" : "",
                        node.assignment.head ? " + head" : "", format_bytes(node.memory_bytes));
  }
  return text;
}

BalanceReport Replica::balance() const {
  const std::lock_guard lock(computing_);
  BalanceReport report;
  const std::vector<StageWork> work = deployment_->work();
  const std::vector<NodeReport> nodes = deployment_->nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const StageAssignment& assignment = nodes[i].assignment;
    NodeShare share{.node_id = nodes[i].name + suffix,
                    .first_layer = assignment.first_layer,
                    .last_layer = assignment.last_layer,
                    .first_slice = assignment.slices.first,
                    .last_slice = assignment.slices.last,
                    .memory_bytes = nodes[i].memory_bytes};
    if (i < work.size() && work[i].steps > 0) {
      share.steps = work[i].steps;
      share.step_s = static_cast<double>(work[i].busy_ns) * 1e-9 / static_cast<double>(work[i].steps);
    }
    const double predicted_s = deployment_->plan().shares[i].prediction.decode_s;
    if (std::isfinite(predicted_s)) share.predicted_s = predicted_s;
    report.shares.push_back(std::move(share));
  }
  report.load_balance_factor = factor_of(report.shares, &NodeShare::step_s);
  if (report.load_balance_factor == 0.0) {
    report.load_balance_factor = factor_of(report.shares, &NodeShare::predicted_s);
  }
  return report;
}

}  // namespace butterfly
