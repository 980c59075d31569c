#include "butterfly/train/step/evaluate.h"

#include <algorithm>
#include <vector>

#include "butterfly/machine/thread_team.h"
#include "butterfly/train/step/train_step.h"

namespace butterfly {

Result<double> validation_loss(TrainableTransformer& transformer, const Dataset& data, Collectives* collectives) {
  const auto seq = static_cast<std::size_t>(transformer.options().seq);
  const auto batch = static_cast<std::size_t>(transformer.options().micro_batch);
  const std::int64_t windows = data.validation_windows(transformer.options().seq);
  if (windows == 0) return 0.0;
  std::vector<TokenId> tokens(batch * seq), targets(batch * seq);
  // Batches are cut alike for any number of ranks; each has two numbers, its losses and its targets.
  const auto batches = (windows + static_cast<std::int64_t>(batch) - 1) / static_cast<std::int64_t>(batch);
  std::vector<double> numbers(static_cast<std::size_t>(batches) * 2);
  const int rank = collectives == nullptr ? 0 : collectives->rank();
  const WorkRange mine = split_work(batches, rank, collectives == nullptr ? 1 : collectives->size());
  for (long b = mine.begin; b < mine.end; ++b) {
    std::fill(tokens.begin(), tokens.end(), TokenId(0));
    std::fill(targets.begin(), targets.end(), TokenId(-1));
    for (std::size_t i = 0; i < batch; ++i) {
      const std::int64_t window = b * static_cast<std::int64_t>(batch) + static_cast<std::int64_t>(i);
      if (window >= windows) break;
      data.validation_window(window, std::span(tokens).subspan(i * seq, seq), std::span(targets).subspan(i * seq, seq));
    }
    double* both = &numbers[static_cast<std::size_t>(b) * 2];
    BF_ASSIGN_OR_RETURN(both[0], transformer.evaluate(tokens, targets));
    both[1] =
        static_cast<double>(std::count_if(targets.begin(), targets.end(), [](TokenId id) { return id.value >= 0; }));
  }
  // Ranks that hold parts of the weights need each other in every pass.
  const int ranks = collectives == nullptr ? 1 : collectives->size();
  const long passes = (batches + ranks - 1) / ranks;
  for (long pass = mine.end - mine.begin; pass < passes; ++pass) BF_TRY(transformer.idle({}));
  BF_TRY(share_numbers(collectives, numbers));
  double losses = 0.0, targets_counted = 0.0;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    losses += numbers[i];
    targets_counted += numbers[i + 1];
  }
  return targets_counted > 0 ? losses / targets_counted : 0.0;
}

}  // namespace butterfly
