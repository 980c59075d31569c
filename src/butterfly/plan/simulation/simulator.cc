#include "butterfly/plan/simulation/simulator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <span>
#include <utility>

#include "butterfly/base/check.h"
#include "butterfly/kernel/inference/reduction_slices.h"
#include "butterfly/plan/cost/micro_batch.h"

namespace butterfly {
namespace {

constexpr int kNone = -1;
constexpr int kMaxCount = 10'000'000;  // of anything; what is kept of that number of requests takes half a gigabyte

/// Numbers that depend on (seed, stream, index) alone: what happens to one request does not shift another's.
class Draws {
 public:
  enum Stream : std::uint64_t { kArrivals = 1, kJitter = 2, kFailures = 3 };

  explicit Draws(std::uint64_t seed) : seed_(mix(seed)) {}

  /// In (0, 1].
  double uniform(Stream stream, std::uint64_t index) const {
    const std::uint64_t bits = mix(seed_ ^ mix(stream ^ mix(index)));
    return static_cast<double>((bits >> 11) + 1) * 0x1p-53;
  }
  double exponential(Stream stream, std::uint64_t index, double mean) const {
    return -mean * std::log(uniform(stream, index));
  }
  double gaussian(Stream stream, std::uint64_t index) const {
    const double radius = std::sqrt(-2.0 * std::log(uniform(stream, 2 * index)));
    return radius * std::cos(2.0 * std::numbers::pi * uniform(stream, 2 * index + 1));
  }

 private:
  /// The finaliser of splitmix64 (https://prng.di.unimi.it/splitmix64.c).
  static std::uint64_t mix(std::uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint64_t seed_;
};

struct Event {
  enum class Kind : std::uint8_t { kArrival, kMessage, kComputed, kFailure, kEpoch };
  double time = 0.0;
  std::uint64_t order = 0;  // of equal times the one that was planned first
  Kind kind = Kind::kArrival;
  int step = kNone;  // kMessage, kComputed
  int epoch = 0;     // of a step; those of ended epochs are dropped

  friend bool operator>(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
};

struct RequestRows {
  int request = 0;
  int rows = 0;
  bool logits = false;
};

struct FlyingStep {
  StepShape shape{};
  std::vector<RequestRows> runs;   // keeps its capacity, as do the next
  std::vector<double> computed_s;  // of each member, at the present stage
  int hop = 0;                     // the stage that it is at, or on its way to
  int next = kNone;                // behind it in a queue
};

struct RequestState {
  double arrived = 0.0, first_token = 0.0, ended = 0.0;
  int submitted = 0;  // positions sent, of those there are
  int generated = 0;
  bool encoded = false;  // its text was sent
  bool waiting = false;  // for logits
};

/// Steps that wait for one node.
struct Server {
  bool busy = false;
  int head = kNone, tail = kNone;
};

/// When directed links, and the two sides of each node's network card, are free again.
class Network {
 public:
  Network(const SimulatedPipeline& pipeline, bool shared_nic) : shared_nic_(shared_nic) {
    std::map<std::pair<int, int>, std::size_t> links;
    const auto add = [&](std::vector<Way>& hop, int from, int to) {
      const std::size_t link = links.emplace(std::pair(from, to), links.size()).first->second;
      hop.push_back({.from = from, .to = to, .link = link, .descriptor = from == to ? kHere : pipeline.link(from, to)});
    };
    int from = kCoordinator;
    for (const std::vector<int>& members : pipeline.stages) {
      hops_.emplace_back();
      for (int member : members) add(hops_.back(), from, member);
      from = members.front();
    }
    hops_.emplace_back();
    add(hops_.back(), from, kCoordinator);
    link_free_.resize(links.size());
    out_free_.resize(static_cast<std::size_t>(pipeline.nodes) + 1);
    forget();
  }

  /// When a message that is ready now has arrived at all receivers of a hop: the sender serves one after the other,
  /// and one message at a time is on a link, in the order in which they come.
  double send(double now, int hop, double bytes, double stretch) {
    double arrival = now;
    for (const Way& way : hops_[static_cast<std::size_t>(hop)]) {
      const double occupied = stretch * bytes / (way.descriptor.gb_per_s * 1e9);
      double& link = link_free_[way.link];
      now = std::max(now, link);
      if (shared_nic_ && way.from != way.to) {
        double& out = out_free_[static_cast<std::size_t>(way.from + 1)];
        double& in = in_free_[static_cast<std::size_t>(way.to + 1)];
        now = std::max({now, out, in});
        out = in = now + occupied;
      }
      link = now = now + occupied;
      arrival = std::max(arrival, now + stretch * way.descriptor.latency_us * 1e-6);
    }
    return arrival;
  }

  /// Whatever was under way is lost.
  void forget() {
    std::ranges::fill(link_free_, 0.0);
    std::ranges::fill(out_free_, 0.0);
    in_free_ = out_free_;
  }

 private:
  static constexpr LinkDescriptor kHere{.latency_us = 0.0, .gb_per_s = std::numeric_limits<double>::infinity()};
  struct Way {
    int from = kCoordinator, to = kCoordinator;
    std::size_t link = 0;
    LinkDescriptor descriptor{};
  };

  bool shared_nic_;
  std::vector<std::vector<Way>> hops_;
  std::vector<double> link_free_, out_free_, in_free_;  // cards by node + 1, the coordinator's first
};

Percentiles percentiles(std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(rank, 1) - 1];
  };
  return {.p50 = at(0.50), .p95 = at(0.95), .p99 = at(0.99)};
}

class Simulation {
 public:
  Simulation(const SimulatedPipeline& pipeline, const SimulationOptions& options)
      : pipeline_(pipeline),
        options_(options),
        draws_(options.seed),
        network_(pipeline, options.shared_nic),
        depth_(static_cast<int>(pipeline.stages.size())),
        jitter_sigma_(std::sqrt(std::log1p(options.jitter * options.jitter))),
        requests_(static_cast<std::size_t>(options.requests)),
        servers_(static_cast<std::size_t>(pipeline.nodes)),
        busy_s_(static_cast<std::size_t>(pipeline.nodes), 0.0) {
    // One more step than stages, as in the schedule of the program.
    steps_.resize(static_cast<std::size_t>(depth_) + 1);
    for (FlyingStep& step : steps_) {
      step.runs.reserve(static_cast<std::size_t>(options.sequences_max));
      step.computed_s.reserve(kReductionSlices);
    }
    free_steps_.reserve(steps_.size());
    active_.reserve(static_cast<std::size_t>(options.sequences_max));
    // Each step is in one place, and there are an arrival and a failure to come, or an epoch.
    events_.reserve(2 * steps_.size() + 8);
  }

  Result<SimulationReport> run() {
    begin_epoch();
    plan({.time = 0.0, .kind = Event::Kind::kArrival});
    if (options_.fail_every_s > 0.0) plan_failure();
    while (ended_ < options_.requests) {
      if (failures_since_end_ > kHopeless) {
        return make_error(ErrorCode::kUnavailable,
                          "{} failures, one every {} s, and no request came to its end between them", failures_,
                          options_.fail_every_s);
      }
      now_ = events_.front().time;
      if (!std::isfinite(now_)) {
        return make_error(ErrorCode::kInvalidArgument, "a simulated computation or message takes forever");
      }
      // Whatever happens at one moment is seen before the next steps are put together.
      while (!events_.empty() && events_.front().time == now_) handle(take());
      submit();
    }
    return report();
  }

 private:
  static constexpr int kHopeless = 1000;

  void plan(Event event) {
    event.order = planned_++;
    events_.push_back(event);
    std::ranges::push_heap(events_, std::greater<>());
  }

  Event take() {
    std::ranges::pop_heap(events_, std::greater<>());
    const Event event = events_.back();
    events_.pop_back();
    return event;
  }

  void plan_failure() {
    const double after = draws_.exponential(Draws::kFailures, failures_planned_++, options_.fail_every_s);
    plan({.time = now_ + after, .kind = Event::Kind::kFailure});
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kArrival:
        return arrive();
      case Event::Kind::kFailure:
        return fail();
      case Event::Kind::kEpoch:
        return begin_epoch();
      case Event::Kind::kMessage:
        if (event.epoch == epoch_) arrive_at_stage(event.step);
        return;
      case Event::Kind::kComputed:
        if (event.epoch == epoch_) leave_stage(event.step);
        return;
    }
  }

  void arrive() {
    requests_[static_cast<std::size_t>(arrived_++)].arrived = now_;
    admit();
    if (arrived_ == options_.requests) return;
    const double after =
        options_.rate_per_s > 0.0
            ? draws_.exponential(Draws::kArrivals, static_cast<std::uint64_t>(arrived_), 1.0 / options_.rate_per_s)
            : 0.0;
    plan({.time = now_ + after, .kind = Event::Kind::kArrival});
  }

  void admit() {
    while (admitted_ < arrived_ && static_cast<int>(active_.size()) < options_.sequences_max) {
      active_.push_back(admitted_++);
    }
  }

  double stretch() {
    if (options_.jitter == 0.0) return 1.0;
    // Log-normal with mean 1 and the wanted variation.
    return std::exp(jitter_sigma_ * draws_.gaussian(Draws::kJitter, jitters_++) - 0.5 * jitter_sigma_ * jitter_sigma_);
  }

  /// Texts that are to be encoded, as many as fit and one at least: as Schedule::add_encoded.
  void add_texts(std::size_t share, FlyingStep& step) {
    if (pipeline_.requests == RequestKind::kContinued) return;
    const bool ends = pipeline_.requests == RequestKind::kEncoded;
    for (std::size_t n = 0; n < active_.size() && step.runs.size() < share; ++n) {
      const int index = active_[(turn_ + n) % active_.size()];
      RequestState& request = requests_[static_cast<std::size_t>(index)];
      if (request.encoded) continue;
      if (!step.runs.empty() && static_cast<int>(step.shape.rows) + options_.prompt > options_.prefill_chunk) break;
      request.encoded = true;
      request.waiting = ends;
      step.runs.push_back({.request = index, .rows = options_.prompt, .logits = ends});
      step.shape.kind = StepKind::kEncodes;
      step.shape.rows += options_.prompt;
      step.shape.sequences += 1;
      step.shape.logit_rows += ends ? 1 : 0;
    }
  }

  /// The rows that request i contributes to a step with `room` left.
  void add_rows(int index, int& prompt_room, FlyingStep& step) {
    RequestState& request = requests_[static_cast<std::size_t>(index)];
    if (pipeline_.requests == RequestKind::kEncoded) return;
    const int begun = pipeline_.requests == RequestKind::kAnswered ? 1 : options_.prompt;
    const int there = begun + request.generated;
    const int room = options_.prefill_chunk - static_cast<int>(step.shape.rows);
    const bool reads = there - request.submitted > 1;
    const int rows = std::min({there - request.submitted, room, reads ? prompt_room : room});
    if (request.waiting || rows <= 0) return;
    const bool logits = request.submitted + rows == there;
    step.runs.push_back({.request = index, .rows = rows, .logits = logits});
    // Each row looks back from its middle, as in prefill_shape(); the sum becomes a mean when the step is complete.
    step.shape.past += rows * (request.submitted + 0.5 * rows);
    step.shape.rows += rows;
    step.shape.sequences += 1;
    step.shape.logit_rows += logits ? 1 : 0;
    request.submitted += rows;
    request.waiting = logits;
    if (reads) prompt_room -= rows;
  }

  /// As Schedule::prompt_rows, where nobody is slowed down.
  int rows_of_prompts() {
    const int begun = pipeline_.requests == RequestKind::kAnswered ? 1 : options_.prompt;
    std::int64_t pending = 0;
    for (const int index : active_) {
      const RequestState& request = requests_[static_cast<std::size_t>(index)];
      const int left = begun + request.generated - request.submitted;
      if (left > 1) pending += left;
    }
    return backlog_.rows(pending, depth_, options_.prefill_chunk);
  }

  /// As Schedule::next_step: the sequences divided among as many steps as there are stages, taking turns.
  void submit() {
    while (serving_ && !free_steps_.empty()) {
      const int active = static_cast<int>(active_.size());
      const auto share = static_cast<std::size_t>(std::max(1, (active + depth_ - 1) / depth_));
      const int slot = free_steps_.back();
      FlyingStep& step = steps_[static_cast<std::size_t>(slot)];
      step.shape = {.rows = 0, .past = 0, .sequences = 0, .logit_rows = 0};
      step.runs.clear();
      if (pipeline_.requests != RequestKind::kContinued) step.shape.text = options_.prompt;
      add_texts(share, step);
      const bool encodes = !step.runs.empty();
      int prompt_room = rows_of_prompts();
      for (std::size_t n = 0; !encodes && n < active_.size() && step.runs.size() < share; ++n) {
        add_rows(active_[(turn_ + n) % active_.size()], prompt_room, step);
      }
      if (step.runs.empty()) return;
      step.shape.past /= step.shape.rows;
      turn_ = (turn_ + step.runs.size()) % active_.size();
      free_steps_.pop_back();
      send(slot, 0);
    }
  }

  void send(int slot, int hop) {
    FlyingStep& step = steps_[static_cast<std::size_t>(slot)];
    step.hop = hop;
    const double arrival = network_.send(now_, hop, pipeline_.message_bytes(hop, step.shape), stretch());
    plan({.time = arrival, .kind = Event::Kind::kMessage, .step = slot, .epoch = epoch_});
  }

  Server& server_of(int stage) {
    return servers_[static_cast<std::size_t>(pipeline_.stages[static_cast<std::size_t>(stage)].front())];
  }

  void arrive_at_stage(int slot) {
    FlyingStep& step = steps_[static_cast<std::size_t>(slot)];
    if (step.hop == depth_) return come_back(slot);
    Server& server = server_of(step.hop);
    if (!server.busy) return compute(slot);
    step.next = kNone;
    (server.tail == kNone ? server.head : steps_[static_cast<std::size_t>(server.tail)].next) = slot;
    server.tail = slot;
  }

  void compute(int slot) {
    FlyingStep& step = steps_[static_cast<std::size_t>(slot)];
    server_of(step.hop).busy = true;
    step.computed_s.clear();
    const std::vector<int>& members = pipeline_.stages[static_cast<std::size_t>(step.hop)];
    double slowest = 0.0;
    for (std::size_t member = 0; member < members.size(); ++member) {
      const double seconds = stretch() * pipeline_.compute_s(step.hop, member, step.shape);
      step.computed_s.push_back(seconds);
      slowest = std::max(slowest, seconds);
    }
    const double talking = members.size() > 1 ? stretch() * pipeline_.exchange_s(step.hop, step.shape) : 0.0;
    plan({.time = now_ + slowest + talking, .kind = Event::Kind::kComputed, .step = slot, .epoch = epoch_});
  }

  void leave_stage(int slot) {
    const FlyingStep& step = steps_[static_cast<std::size_t>(slot)];
    const int hop = step.hop;
    const std::vector<int>& members = pipeline_.stages[static_cast<std::size_t>(hop)];
    for (std::size_t member = 0; member < members.size(); ++member) {
      busy_s_[static_cast<std::size_t>(members[member])] += step.computed_s[member];
    }
    Server& server = server_of(hop);
    server.busy = false;
    send(slot, hop + 1);
    if (server.head == kNone) return;
    const int next = server.head;
    server.head = steps_[static_cast<std::size_t>(next)].next;
    if (server.head == kNone) server.tail = kNone;
    compute(next);
  }

  void come_back(int slot) {
    for (const RequestRows& run : steps_[static_cast<std::size_t>(slot)].runs) {
      if (!run.logits) continue;
      RequestState& request = requests_[static_cast<std::size_t>(run.request)];
      request.waiting = false;
      if (request.generated++ == 0) request.first_token = now_;
      if (request.generated < answer_tokens()) continue;
      request.ended = now_;
      ++ended_;
      failures_since_end_ = 0;
      std::erase(active_, run.request);
    }
    if (!active_.empty()) turn_ %= active_.size();
    free_steps_.push_back(slot);
    admit();
  }

  int answer_tokens() const { return pipeline_.requests == RequestKind::kEncoded ? 1 : options_.generated; }

  /// A node that serves is dead: what is under way is lost, and nothing is computed until all know.
  void fail() {
    plan_failure();
    if (!serving_) return;
    ++failures_;
    ++failures_since_end_;
    serving_ = false;
    ++epoch_;
    plan({.time = now_ + options_.detect_s, .kind = Event::Kind::kEpoch});
  }

  /// Caches are empty: every sequence is read again from its tokens.
  void begin_epoch() {
    serving_ = true;
    free_steps_.resize(steps_.size());
    std::iota(free_steps_.rbegin(), free_steps_.rend(), 0);
    std::ranges::fill(servers_, Server{});
    network_.forget();
    for (int index : active_) {
      RequestState& request = requests_[static_cast<std::size_t>(index)];
      replayed_rows_ += static_cast<std::uint64_t>(request.submitted + (request.encoded ? options_.prompt : 0));
      request.submitted = 0;
      request.encoded = false;
      request.waiting = false;
    }
  }

  SimulationReport report() const {
    SimulationReport result;
    std::vector<double> first, whole;
    double last = 0.0;
    for (const RequestState& request : requests_) {
      first.push_back(request.first_token - request.arrived);
      whole.push_back(request.ended - request.arrived);
      last = std::max(last, request.ended);
    }
    result.seconds = last - requests_.front().arrived;
    result.first_token_s = percentiles(std::move(first));
    result.request_s = percentiles(std::move(whole));
    const int each = pipeline_.requests == RequestKind::kEncoded ? options_.prompt : options_.generated;
    const double tokens = static_cast<double>(options_.requests) * each;
    result.tokens_per_s = result.seconds > 0.0 ? tokens / result.seconds : 0.0;
    for (double busy : busy_s_) result.utilisation.push_back(result.seconds > 0.0 ? busy / result.seconds : 0.0);
    result.failures = failures_;
    result.replayed_rows = replayed_rows_;
    result.events = planned_;
    return result;
  }

  const SimulatedPipeline& pipeline_;
  const SimulationOptions& options_;
  Draws draws_;
  Network network_;
  int depth_;
  double jitter_sigma_;
  std::vector<RequestState> requests_;
  std::vector<Server> servers_;
  std::vector<double> busy_s_;
  std::vector<FlyingStep> steps_;
  std::vector<int> free_steps_;
  std::vector<int> active_;  // requests at work, in order of arrival
  std::vector<Event> events_;
  double now_ = 0.0;
  std::size_t turn_ = 0;
  PromptBacklog backlog_;
  int arrived_ = 0, admitted_ = 0, ended_ = 0;
  int epoch_ = 0, failures_ = 0, failures_since_end_ = 0;
  bool serving_ = false;
  std::uint64_t planned_ = 0, jitters_ = 0, failures_planned_ = 0, replayed_rows_ = 0;
};

Status check(const SimulatedPipeline& pipeline, const SimulationOptions& options) {
  BF_CHECK(!pipeline.stages.empty(), "a simulated pipeline has stages");
  const std::pair<const char*, int> counts[] = {{"requests", options.requests},
                                                {"prompt tokens", options.prompt},
                                                {"generated tokens", options.generated},
                                                {"sequences at once", options.sequences_max},
                                                {"rows of a prefill chunk", options.prefill_chunk}};
  for (const auto& [what, value] : counts) {
    if (value < 1 || value > kMaxCount) {
      return make_error(ErrorCode::kInvalidArgument, "{} {}, expected 1 to {}", value, what, kMaxCount);
    }
  }
  const std::pair<const char*, double> numbers[] = {{"arrival rate", options.rate_per_s},
                                                    {"jitter", options.jitter},
                                                    {"time between failures", options.fail_every_s},
                                                    {"time of detection", options.detect_s}};
  for (const auto& [what, value] : numbers) {
    if (!std::isfinite(value) || value < 0.0) {
      return make_error(ErrorCode::kInvalidArgument, "the {} is {}, expected a number of 0 or more", what, value);
    }
  }
  return {};
}

}  // namespace

Result<SimulationReport> simulate(const SimulatedPipeline& pipeline, const SimulationOptions& options) {
  BF_TRY(check(pipeline, options));
  return Simulation(pipeline, options).run();
}

}  // namespace butterfly
