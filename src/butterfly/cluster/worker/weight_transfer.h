// Both ends of the connection that brings weights to a worker: several requests under way, answered in order, each
// answer read into its final buffer and checked against its digest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/cluster/worker/local_models.h"
#include "butterfly/cluster/worker/weights.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// Worker's end. The channel may be closed from another thread to end a fetch.
class RemoteWeightFetcher final : public WeightFetcher {
 public:
  struct Source {
    std::string hash{};  // of the assigned model
    std::uint64_t bytes = 0;
    std::vector<std::string> holders{};                                       // addresses of workers with its file
    std::function<Result<ChannelPtr>(const std::string& address)> connect{};  // to one of them
  };
  RemoteWeightFetcher(Channel& channel, LocalModels& local, Source model)
      : channel_(channel), local_(local), model_(std::move(model)) {}

  Result<std::optional<std::string>> local_path() override { return local_.find(model_.hash, model_.bytes); }
  Status check_local(const std::string& path) const override { return local_.check(path); }

  /// The coordinator tells each weight's digest; the bytes come from a holder where there is one, and from the
  /// coordinator where holders fail or lie.
  Status fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) override;

 private:
  enum class Wanted : std::uint8_t { kWhole, kHeaders };
  struct Peer {
    Channel& channel;
    std::string who;
    std::uint64_t asked = 0;
  };
  using Taker = std::function<Status(std::size_t index, NamedBytes weight)>;

  static Status transfer(Peer& peer, std::span<const WeightRequest> wanted, Wanted what, const Taker& taker);
  static Status ask(Peer& peer, const WeightRequest& request, Wanted what, std::uint64_t tag);
  static Result<NamedBytes> take(Peer& peer, const WeightRequest& request, Wanted what, std::uint64_t tag);
  bool reach_holder();
  Result<std::size_t> fetch_from_holders(std::span<const WeightRequest> wanted, const WeightSink& sink);

  Channel& channel_;
  LocalModels& local_;
  const Source model_;
  Peer coordinator_{.channel = channel_, .who = "the coordinator"};
  ChannelPtr holder_channel_;
  std::optional<Peer> holder_;
  std::size_t next_holder_ = 0;
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
