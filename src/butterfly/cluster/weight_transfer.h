// Both ends of the connection that brings weights to a worker: several requests under way, answered in order, each
// answer read into its final buffer and checked against its digest.
#pragma once

#include <atomic>
#include <cstdint>

#include "butterfly/cluster/local_models.h"
#include "butterfly/cluster/weights.h"
#include "butterfly/wire/channel.h"

namespace butterfly {

/// Worker's end. The channel may be closed from another thread to end a fetch.
class RemoteWeightFetcher final : public WeightFetcher {
 public:
  struct Source {
    std::string hash{};  // of the assigned model
    std::uint64_t bytes = 0;
  };
  RemoteWeightFetcher(Channel& channel, LocalModels& local, Source model)
      : channel_(channel), local_(local), model_(std::move(model)) {}

  Result<std::optional<std::string>> local_path() override { return local_.find(model_.hash, model_.bytes); }
  Status fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) override;

 private:
  Status ask(const WeightRequest& request, std::uint64_t tag);
  Result<NamedBytes> take(const WeightRequest& request, std::uint64_t tag);

  Channel& channel_;
  LocalModels& local_;
  const Source model_;
  std::uint64_t asked_ = 0;
};

/// Coordinator's end: answers until the channel closes. `bytes_sent` grows by what was handed to the channel.
Status serve_weights(Channel& channel, const WeightProvider& provider, std::atomic<std::uint64_t>& bytes_sent);

/// Between threads of one process: the provider's own bytes.
class DirectWeightFetcher final : public WeightFetcher {
 public:
  explicit DirectWeightFetcher(const WeightProvider& provider) : provider_(provider) {}
  Result<std::optional<std::string>> local_path() override { return std::nullopt; }
  Status fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) override;

 private:
  const WeightProvider& provider_;
};

}  // namespace butterfly
