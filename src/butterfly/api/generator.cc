#include "butterfly/generator.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "butterfly/api/convert.h"
#include "butterfly/api/node_feed.h"
#include "butterfly/api/replica.h"
#include "butterfly/base/units.h"
#include "butterfly/infer/scheduler/generate.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct Generator::State {
  Checkpoint checkpoint;  // before what reads from it
  Tokenizer tokenizer;
  std::mutex events{};                                      // one callback at a time
  NodeRegistry nodes{{.heartbeat_timeout = {}}};            // health is what the membership says
  NodeRegistry replicas_in_use{{.heartbeat_timeout = {}}};  // their ids are their numbers
  std::optional<LoadBalancer> balancer{};                   // over these
  std::vector<std::unique_ptr<Replica>> replicas{};         // first to go: they call what is above
};

namespace {

/// Requests a stop when the time is over, unless it ends before.
class DeadlineTimer {
 public:
  DeadlineTimer(std::chrono::milliseconds time, std::stop_source& ended) {
    if (time.count() <= 0) return;
    thread_ = std::jthread([this, time, &ended](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      if (over_.wait_for(lock, stop, time, [] { return false; }) || stop.stop_requested()) return;
      passed_ = true;
      ended.request_stop();
    });
  }
  bool passed() const { return passed_; }

 private:
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::atomic<bool> passed_{false};
  std::jthread thread_;
};

Request to_request(const TextOptions& options) {
  Request request;
  request.tokens_max = options.tokens_max;
  request.sampling = {.temperature = options.temperature,
                      .top_k = options.top_k,
                      .top_p = options.top_p,
                      .min_p = options.min_p,
                      .repeat_penalty = options.repeat_penalty,
                      .seed = options.seed};
  request.stops = options.stops;
  request.ignore_end = options.ignore_end;
  return request;
}

Status check(const GeneratorOptions& options) {
  if (options.threads < 0 || options.nodes < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads on each of {} nodes", options.threads, options.nodes);
  }
  for (const std::chrono::milliseconds time :
       {options.ready_timeout, options.step_timeout, options.heartbeat, options.dead_after}) {
    if (time.count() < 1) {
      return make_error(ErrorCode::kInvalidArgument, "a time of {} ms, expected at least 1", time.count());
    }
  }
  return {};
}

/// Of all replicas together.
Result<DeploymentConfig> deployment_config(const GeneratorOptions& options) {
  DeploymentConfig config{.nodes = options.nodes,
                          .compute = {.threads = options.threads, .packed_folder = options.packed_cache},
                          .membership = {.workers = options.workers,
                                         .join_at = options.join_at,
                                         .cluster = {.heartbeat = options.heartbeat, .dead_after = options.dead_after}},
                          .access = {.credentials = options.credentials, .any_address = options.any_address},
                          .timeouts = {.step = options.step_timeout,
                                       .ready = options.ready_timeout,
                                       .recover_within = options.recover_within},
                          .plan = {.strategy = options.split, .custom = custom_plan(options.custom)},
                          .measure_links = options.measure_links};
  BF_ASSIGN_OR_RETURN(config.plan.goal, parse_plan_goal(options.goal));
  return config;
}

}  // namespace

const char* to_string(GeneratorEvent::Kind kind) {
  switch (kind) {
    case GeneratorEvent::Kind::kJoined:
      return "joined";
    case GeneratorEvent::Kind::kLost:
      return "lost";
    case GeneratorEvent::Kind::kEpoch:
      return "epoch";
    case GeneratorEvent::Kind::kWaiting:
      return "waiting";
  }
  return "unknown";
}

Generator::Generator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

Result<Generator> Generator::load(const std::string& model, const GeneratorOptions& options) {
  BF_TRY(check(options));
  BF_ASSIGN_OR_RETURN(const DeploymentConfig all, deployment_config(options));
  BF_TRY(replica_config(all, 0, options.replicas));
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(model));
  BF_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::create(checkpoint.vocabulary));
  auto state =
      std::unique_ptr<State>(new State{.checkpoint = std::move(checkpoint), .tokenizer = std::move(tokenizer)});
  std::function<void(const std::string&)> progress;
  if (options.progress) {
    progress = [&mutex = state->events, say = options.progress](const std::string& line) {
      const std::lock_guard lock(mutex);
      say(line);
    };
  }
  for (int number = 0; number < options.replicas; ++number) {
    BF_ASSIGN_OR_RETURN(const DeploymentConfig config, replica_config(all, number, options.replicas));
    DeploymentObserver observer = node_feed(state->nodes, state->events, options.event);
    observer.progress = progress;
    BF_ASSIGN_OR_RETURN(auto deployment, Deployment::create(state->checkpoint, config, observer));
    const SchedulerOptions limits{.context = deployment->plan().context, .vocab = state->checkpoint.config.vocab};
    auto replica = std::make_unique<Replica>(std::move(deployment), state->tokenizer, limits);
    BF_TRY(state->replicas_in_use.register_node({.id = std::to_string(number)}));
    if (config.is_here()) {
      if (number > 0) replica->suffix = fmt::format(" of replica {}", number);
      BF_TRY(register_threads(*replica, config.compute.threads, state->nodes));
    }
    state->replicas.push_back(std::move(replica));
  }
  state->balancer.emplace(state->replicas_in_use, options.policy);
  return Generator(std::move(state));
}

Result<GeneratedText> Generator::generate(std::string_view prompt, const TextOptions& options,
                                          const std::function<void(std::string_view)>& on_text, std::stop_token stop) {
  Request request = to_request(options);
  BF_TRY(set_prompt(state_->tokenizer, state_->checkpoint.config, prompt, request));
  std::stop_source ended;
  const std::stop_callback forward_stop(std::move(stop), [&] { ended.request_stop(); });
  const DeadlineTimer timer(options.deadline, ended);
  // Another replica writes the same text from its beginning: what was passed on already is not passed on again.
  std::size_t given = 0;
  for (;;) {
    BF_ASSIGN_OR_RETURN(const LoadBalancer::Ticket ticket, state_->balancer->acquire(options.tokens_max));
    Replica& replica = *state_->replicas[static_cast<std::size_t>(std::stoi(ticket.node().id))];
    std::size_t seen = 0;
    const auto sink = [&](std::string_view text) {
      seen += text.size();
      if (seen <= given) return;
      if (on_text) on_text(text.substr(text.size() - (seen - given)));
      given = seen;
    };
    Result<GeneratedText> text = replica.generate(request, sink, ended.get_token());
    if (text && timer.passed() && text->finish == to_string(FinishReason::kCancelled)) text->finish = "deadline";
    const bool elsewhere = !text && is_lost(text.error()) && state_->replicas.size() > 1;
    if (!elsewhere) return text;
    BF_TRY(state_->replicas_in_use.mark_unhealthy(ticket.node().id));
    if (state_->replicas_in_use.healthy().empty()) {
      // The next call tries all of them again.
      for (const Node& one : state_->replicas_in_use.list()) BF_TRY(state_->replicas_in_use.heartbeat(one.id));
      return text;
    }
  }
}

Result<std::vector<int>> Generator::tokenize(std::string_view text) const {
  BF_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, encode_prompt(state_->tokenizer, text));
  std::vector<int> ids;
  for (TokenId token : tokens) ids.push_back(token.value);
  return ids;
}

std::string Generator::describe() const {
  std::string text;
  for (const auto& replica : state_->replicas) text += replica->describe();
  return text;
}

const NodeRegistry& Generator::nodes() const {
  return state_->nodes;
}

BalanceReport Generator::balance() const {
  BalanceReport all;
  for (const auto& replica : state_->replicas) {
    BalanceReport one = replica->balance();
    const bool first = all.shares.empty();
    all.load_balance_factor =
        first ? one.load_balance_factor : std::min(all.load_balance_factor, one.load_balance_factor);
    for (NodeShare& share : one.shares) all.shares.push_back(std::move(share));
  }
  return all;
}

Result<std::string> Generator::rebalance() {
  std::string said;
  for (const auto& replica : state_->replicas) {
    BF_ASSIGN_OR_RETURN(const std::string outcome, replica->deployment().rebalance());
    said += said.empty() ? outcome : "; " + outcome;
  }
  return said;
}

}  // namespace butterfly
