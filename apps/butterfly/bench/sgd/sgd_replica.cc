#include "bench/sgd/sgd_replica.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "butterfly/base/clock.h"
#include "butterfly/base/hash/crc32c.h"
#include "butterfly/base/hash/digest.h"

namespace butterfly {
namespace {

using Clock = std::chrono::steady_clock;

void add_floats(MutableByteSpan into, ByteSpan from) {
  auto* sums = reinterpret_cast<float*>(into.data());
  const auto* values = reinterpret_cast<const float*>(from.data());
  for (std::size_t i = 0; i < into.size() / sizeof(float); ++i) sums[i] += values[i];
}

/// Everyone's bytes, in rank order, where all have as many.
Result<std::vector<std::byte>> gather(Collectives& collectives, ByteSpan mine) {
  const auto members = static_cast<std::size_t>(collectives.size());
  std::vector<std::byte> all(members * mine.size());
  std::vector<MutableByteSpan> parts;
  for (std::size_t rank = 0; rank < members; ++rank) {
    parts.push_back(std::span(all).subspan(rank * mine.size(), mine.size()));
  }
  std::ranges::copy(mine, parts[static_cast<std::size_t>(collectives.rank())].begin());
  BF_TRY(collectives.all_gather(parts));
  return all;
}

}  // namespace

Result<SgdRun> train_small_mlp(Collectives& collectives, const SgdOptions& options) {
  const auto ranks = static_cast<std::uint64_t>(collectives.size());
  SgdRun run{.weights = std::vector<float>(kMlpParameters)};
  run.checksums.reserve(static_cast<std::size_t>(options.steps));
  initialise_mlp(std::span(run.weights), options.seed);
  std::vector<float> sums(kMlpParameters + 1);  // the gradient, and the loss
  const std::span gradient = std::span(sums).first(kMlpParameters);
  MlpBatch<float> batch;
  const int tail = std::max(1, options.steps / 10);
  const float scale = options.rate / static_cast<float>(ranks);
  double tail_losses = 0.0;
  BF_TRY(collectives.barrier());
  const auto begin = Clock::now();
  for (int step = 0; step < options.steps; ++step) {
    const std::uint64_t number =
        static_cast<std::uint64_t>(step) * ranks + static_cast<std::uint64_t>(collectives.rank());
    make_mlp_batch(options.seed, number, options.batch, batch);
    sums.back() = mlp_gradient<float>(run.weights, batch, gradient);
    BF_TRY(collectives.all_reduce(std::as_writable_bytes(std::span(sums)), sizeof(float), add_floats,
                                  AllReduceAlgorithm::kAuto));
    for (std::size_t i = 0; i < kMlpParameters; ++i) run.weights[i] -= scale * gradient[i];
    run.checksums.push_back(crc32c(std::as_bytes(std::span(run.weights))));
    const double loss = static_cast<double>(sums.back()) / static_cast<double>(ranks);
    if (!std::isfinite(loss)) return make_error(ErrorCode::kBadData, "the loss of step {} is {}", step, loss);
    if (step == 0) run.first_loss = loss;
    if (step >= options.steps - tail) tail_losses += loss;
  }
  run.seconds = seconds_since(begin);
  run.last_loss = tail_losses / tail;
  return run;
}

Status check_replicas(Collectives& collectives, const SgdRun& run) {
  const ByteSpan mine = std::as_bytes(std::span(run.checksums));
  BF_ASSIGN_OR_RETURN(const auto all, gather(collectives, mine));
  const auto* checksums = reinterpret_cast<const std::uint32_t*>(all.data());
  for (std::size_t step = 0; step < run.checksums.size(); ++step) {
    for (int rank = 1; rank < collectives.size(); ++rank) {
      const std::uint32_t theirs = checksums[static_cast<std::size_t>(rank) * run.checksums.size() + step];
      if (theirs == checksums[step]) continue;
      return make_error(ErrorCode::kBadData, "after step {} the weights of rank 0 are {:08x}, those of rank {} {:08x}",
                        step, checksums[step], rank, theirs);
    }
  }
  const Sha256 digest = sha256(std::as_bytes(std::span(run.weights)));
  BF_ASSIGN_OR_RETURN(const auto digests, gather(collectives, digest));
  for (int rank = 1; rank < collectives.size(); ++rank) {
    const auto theirs = ByteSpan(digests).subspan(static_cast<std::size_t>(rank) * digest.size(), digest.size());
    const auto first = ByteSpan(digests).first(digest.size());
    if (std::ranges::equal(theirs, first)) continue;
    return make_error(ErrorCode::kBadData, "at the end the weights of rank 0 are {}, those of rank {} {}",
                      to_hex(first), rank, to_hex(theirs));
  }
  return {};
}

Status check_learned(const SgdRun& run) {
  const double chance = std::log(static_cast<double>(kMlpClasses));
  if (run.last_loss < chance / 2) return {};
  return make_error(ErrorCode::kBadData, "nothing was learned: the last loss is {:.4f}, a guess has {:.4f}",
                    run.last_loss, chance);
}

}  // namespace butterfly
