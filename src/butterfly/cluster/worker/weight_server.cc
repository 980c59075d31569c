#include "butterfly/cluster/worker/weight_server.h"

#include "butterfly/base/log.h"
#include "butterfly/cluster/worker/weight_transfer.h"

namespace butterfly {

WeightServer::~WeightServer() {
  std::lock_guard lock(mutex_);
  for (Giving& one : giving_) one.channel->close();
  giving_.clear();  // joins
}

void WeightServer::give(ChannelPtr channel, const std::string& model_hash) {
  std::lock_guard lock(mutex_);
  std::erase_if(giving_, [](const Giving& one) { return one.over.load(); });
  if (giving_.size() >= kGivingMax) return;
  Giving& one = giving_.emplace_back();
  one.channel = std::move(channel);
  one.thread = std::jthread([this, model_hash, to = one.channel, &over = one.over] {
    const Status status = serve(*to, model_hash);
    if (!status) log().debug("{}: {}", to->peer(), status.error().message);
    to->close();
    over = true;
  });
}

/// Until the other worker has what it needs and closes the channel.
Status WeightServer::serve(Channel& channel, const std::string& model_hash) const {
  const auto path = local_.found(model_hash);
  if (!path) return make_error(ErrorCode::kNotFound, "no file with SHA-256 {} is here", model_hash);
  BF_ASSIGN_OR_RETURN(const WeightProvider provider, delegate_.open_weights(*path));
  BF_TRY(local_.check(*path));
  log().info("gives weights of {} to {}", *path, channel.peer());
  std::atomic<std::uint64_t> bytes{0};
  return serve_weights(channel, provider, bytes);
}

}  // namespace butterfly
