#include "butterfly/stage/paced_stage.h"

#include <algorithm>

#include "butterfly/base/check.h"
#include "butterfly/stage/exchange_calibration.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

void catch_up(Emulation& emulation) {
  if (!emulation.active()) return;
  const trace::Scope scope(trace::Zone::kEmulation);
  emulation.catch_up();
}

}  // namespace

/// While a stage computes, its exchanges are pauses: a slower machine would come to them later, and other stages of
/// this node go on meanwhile.
class PacedStage::PacedExchange final : public Exchange {
 public:
  PacedExchange(Exchange& others, Emulation& emulation, std::mutex& turn)
      : others_(others), emulation_(emulation), turn_(turn) {}

  int rank() const override { return others_.rank(); }
  int size() const override { return others_.size(); }
  void abort() override { others_.abort(); }

  Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override {
    if (!computing_) return others_.exchange(to, from);
    catch_up(emulation_);  // a slower machine would have its sums later
    const std::uint64_t begin_ns = trace::now_ns();
    turn_.unlock();  // the others may need another stage of this node to get so far
    const Status status = company_ == Company::kTogether ? others_.exchange(to, from) : answered(from);
    {
      const trace::Scope scope(trace::Zone::kWaitTurn);
      turn_.lock();
    }
    paused_ns_ += trace::now_ns() - begin_ns;
    emulation_.begin();
    return status;
  }

  /// The stage has the turn and computes from now on, or no longer.
  void computing(bool now) { computing_ = now; }
  /// Alone: as if the others had answered already.
  void in(Company company) { company_ = company; }
  std::uint64_t paused_ns() const { return paused_ns_; }
  Exchange& others() { return others_; }

 private:
  static Status answered(std::span<const MutableByteSpan> from) {
    for (const MutableByteSpan bytes : from) std::ranges::fill(bytes, std::byte{0});
    return {};
  }

  Exchange& others_;
  Emulation& emulation_;
  std::mutex& turn_;
  bool computing_ = false;
  Company company_ = Company::kTogether;
  std::uint64_t paused_ns_ = 0;
};

PacedStage::PacedStage(std::unique_ptr<Stage> stage, const PacedStageOptions& options)
    : crew_(options.crew ? options.crew : std::make_shared<Crew>(1)),
      counters_(options.counters),
      emulation_(options.emulated_speed, options.emulation_clock),
      stage_(std::move(stage)) {
  // At the end of each step, as a part of it.
  stage_->set_pace([this] { catch_up(emulation_); });
}

PacedStage::~PacedStage() = default;

Status PacedStage::join(Exchange& exchange) {
  exchange_ = std::make_unique<PacedExchange>(exchange, emulation_, crew_->turn);
  return stage_->join(*exchange_);
}

Status PacedStage::forward(Step& step) {
  if (step.batch.runs.empty()) return stage_->forward(step);
  std::unique_lock turn(crew_->turn, std::defer_lock);
  {
    const trace::Scope scope(trace::Zone::kWaitTurn);
    turn.lock();
  }
  emulation_.begin();
  const std::uint64_t begin_ns = worked_ns();
  if (exchange_) exchange_->computing(true);
  Status status = stage_->forward(step);
  if (exchange_) exchange_->computing(false);
  if (counters_ != nullptr) {
    counters_->steps.fetch_add(1, std::memory_order_relaxed);
    counters_->busy_ns.fetch_add(worked_ns() - begin_ns, std::memory_order_relaxed);
  }
  return status;
}

std::uint64_t PacedStage::worked_ns() const {
  if (emulation_.active()) return emulation_.worked_ns();
  return trace::now_ns() - (exchange_ ? exchange_->paused_ns() : 0);
}

Result<ExchangeTimes> PacedStage::measure_exchanges() {
  BF_CHECK(exchange_, "only members of a group exchange anything");
  const std::lock_guard turn(crew_->turn);
  constexpr std::int64_t kBytesOfManyRows = 512 * 1024;
  const std::int64_t row_bytes = stage_->config().model_dim * static_cast<std::int64_t>(sizeof(float));
  const int many = static_cast<int>(std::clamp<std::int64_t>(kBytesOfManyRows / row_bytes, exchange_->size() + 1, 64));
  StageTrial trial(*stage_, many);
  const auto block = [&](int rows, Company company) -> Status {
    exchange_->in(company);
    exchange_->computing(true);
    Status status = trial.block(rows);
    exchange_->computing(false);
    return status;
  };
  emulation_.begin();
  Result<ExchangeTimes> times = butterfly::measure_exchanges(
      exchange_->others(),
      {.ready = trial.ready(), .many_rows = many, .block = block, .clock_ns = trace::now_ns, .worked_ns = [this] {
         return worked_ns();
       }});
  exchange_->in(Company::kTogether);
  if (!times) stage_->leave_group();
  return times;
}

}  // namespace butterfly
