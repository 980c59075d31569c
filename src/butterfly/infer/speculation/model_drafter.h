// Guesses by a smaller model with the same vocabulary, in this process: what it finds most probable. Leviathan, Kalman,
// Matias, "Fast inference from transformers via speculative decoding" (2023), with an exact comparison instead of
// rejection sampling: the text stays the one that the large model writes alone.
#pragma once

#include <map>
#include <memory>

#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/speculation/drafter.h"
#include "butterfly/tensor/pool.h"

namespace butterfly {

class ModelDrafter final : public Drafter {
 public:
  /// `context`: of the small model; longer texts go on without guesses.
  ModelDrafter(std::unique_ptr<Deployment> model, int context);

  Result<std::vector<TokenId>> propose(SequenceId sequence, std::span<const TokenId> tokens, std::size_t most) override;
  void forget(SequenceId sequence) override;
  double seconds_per_token() const override { return seconds_; }

 private:
  Result<TokenId> most_probable(SequenceId sequence, std::size_t position, std::span<const TokenId> tokens);
  Result<TokenId> read(SequenceId sequence, std::span<const TokenId> tokens);

  const std::unique_ptr<Deployment> model_;
  const std::size_t context_;
  const std::shared_ptr<Pool> pool_;
  std::map<SequenceId, std::vector<TokenId>> cached_;  // the text whose keys and values its model has
  std::vector<SequenceId> released_;
  std::uint64_t next_step_ = 1;
  double seconds_ = 1e-6;  // of one guess; until it is measured, next to nothing
};

/// Whether one model's tokens are the other's. Errors: kInvalidArgument saying where they differ.
Status check_same_tokens(const Checkpoint& model, const Checkpoint& draft);

}  // namespace butterfly
