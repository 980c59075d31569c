#include "butterfly/train/step/evaluate.h"

#include <algorithm>
#include <vector>

#include "butterfly/machine/thread_team.h"
#include "butterfly/train/step/stage_step.h"

namespace butterfly {
namespace {

/// The windows of the validation part in batches, cut alike for any number of ranks.
class Batches {
 public:
  Batches(const TransformerOptions& options, const Dataset& data)
      : data_(data),
        seq_(static_cast<std::size_t>(options.seq)),
        batch_(static_cast<std::size_t>(options.micro_batch)),
        windows_(data.validation_windows(options.seq)),
        tokens_(batch_ * seq_),
        targets_(batch_ * seq_) {}

  long count() const { return (windows_ + static_cast<long>(batch_) - 1) / static_cast<long>(batch_); }

  void read(long number) {
    std::fill(tokens_.begin(), tokens_.end(), TokenId(0));
    std::fill(targets_.begin(), targets_.end(), TokenId(-1));
    for (std::size_t i = 0; i < batch_; ++i) {
      const std::int64_t window = number * static_cast<std::int64_t>(batch_) + static_cast<std::int64_t>(i);
      if (window >= windows_) break;
      data_.validation_window(window, std::span(tokens_).subspan(i * seq_, seq_),
                              std::span(targets_).subspan(i * seq_, seq_));
    }
  }

  std::span<const TokenId> tokens() const { return tokens_; }
  std::span<const TokenId> targets() const { return targets_; }
  double counted() const {
    return static_cast<double>(
        std::count_if(targets_.begin(), targets_.end(), [](TokenId id) { return id.value >= 0; }));
  }

 private:
  const Dataset& data_;
  const std::size_t seq_, batch_;
  const std::int64_t windows_;
  std::vector<TokenId> tokens_, targets_;  // of one
};

/// Of each batch two numbers, its losses and its targets, where its losses are known.
Status run_ranks(TrainableTransformer& transformer, Collectives* collectives, Batches& batches,
                 std::span<double> numbers) {
  const int rank = collectives == nullptr ? 0 : collectives->rank();
  const int ranks = collectives == nullptr ? 1 : collectives->size();
  const WorkRange mine = split_work(batches.count(), rank, ranks);
  for (long b = mine.begin; b < mine.end; ++b) {
    batches.read(b);
    double* both = &numbers[static_cast<std::size_t>(b) * 2];
    BF_ASSIGN_OR_RETURN(both[0], transformer.evaluate(batches.tokens(), batches.targets()));
    both[1] = batches.counted();
  }
  // Ranks that hold parts of the weights need each other in every pass.
  const long passes = (batches.count() + ranks - 1) / ranks;
  for (long pass = mine.end - mine.begin; pass < passes; ++pass) BF_TRY(transformer.idle({}));
  return {};
}

Status run_stages(PartPasses& passes, Collectives& collectives, const StagePlace& place, Batches& batches,
                  std::span<double> numbers) {
  StreamLinks links(passes, collectives, place);
  constexpr int kAt = 0;
  for (const StagePass& work : forward_schedule(place.stage, place.stages, static_cast<int>(batches.count()))) {
    if (place.is_last()) batches.read(work.micro_batch);
    if (work.kind == StagePassKind::kEmbed) {
      BF_TRY(passes.embed(batches.tokens()));
      BF_TRY(links.send_embedded(work.micro_batch));
      continue;
    }
    BF_TRY(links.receive_forward(work.micro_batch, kAt));
    BF_ASSIGN_OR_RETURN(const double losses, passes.forward_part(kAt, batches.targets()));
    if (!place.is_last()) BF_TRY(links.send_forward(work.micro_batch, kAt));
    if (!place.is_last()) continue;
    double* both = &numbers[static_cast<std::size_t>(work.micro_batch) * 2];
    both[0] = losses;
    both[1] = batches.counted();
  }
  return {};
}

}  // namespace

Result<double> validation_loss(TrainableTransformer& transformer, const Dataset& data, Collectives* collectives,
                               const StagePlace* stages) {
  Batches batches(transformer.options(), data);
  if (batches.count() == 0) return 0.0;
  std::vector<double> numbers(static_cast<std::size_t>(batches.count()) * 2);
  if (stages == nullptr) BF_TRY(run_ranks(transformer, collectives, batches, numbers));
  if (stages != nullptr) BF_TRY(run_stages(transformer.part(), *collectives, *stages, batches, numbers));
  BF_TRY(share_numbers(collectives, numbers));
  double losses = 0.0, targets_counted = 0.0;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    losses += numbers[i];
    targets_counted += numbers[i + 1];
  }
  return targets_counted > 0 ? losses / targets_counted : 0.0;
}

}  // namespace butterfly
