#include "butterfly/cluster/worker/channel_hub.h"

#include "butterfly/trace/trace.h"

namespace butterfly {

void ChannelHub::deliver(const std::string& label, ChannelPtr channel) {
  const auto parsed = parse_data_label(label);
  if (!parsed) return;
  std::lock_guard lock(mutex_);
  if (parsed->epoch <= ended_) return trace::add(trace::Counter::kWireStaleMessages, 1);
  if (channels_.size() < kChannelsMax) channels_.try_emplace({parsed->epoch, parsed->what}, std::move(channel));
  changed_.notify_all();
}

std::shared_ptr<Channel> ChannelHub::keep(const std::string& what, Epoch epoch, ChannelPtr channel) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Channel> shared(std::move(channel));
  if (epoch <= ended_) {
    shared->close();
  } else {
    channels_[{epoch, what}] = shared;
  }
  return shared;
}

std::shared_ptr<Channel> ChannelHub::wait(const std::string& what, Epoch epoch, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const Key key{epoch, what};
  changed_.wait_until(lock, deadline, [&] { return epoch <= ended_ || channels_.contains(key); });
  const auto found = channels_.find(key);
  return found == channels_.end() ? nullptr : found->second;
}

std::shared_ptr<Channel> ChannelHub::find(const std::string& what, Epoch epoch) const {
  std::lock_guard lock(mutex_);
  const auto found = channels_.find({epoch, what});
  return found == channels_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Channel>> ChannelHub::step_channels(Epoch epoch) const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Channel>> channels;
  for (const auto& [key, channel] : channels_) {
    if (key.first == epoch && key.second != kWeightsLabel) channels.push_back(channel);
  }
  return channels;
}

void ChannelHub::end_through(Epoch epoch) {
  std::lock_guard lock(mutex_);
  if (epoch <= ended_) return;
  ended_ = epoch;
  for (auto it = channels_.begin(); it != channels_.end() && it->first.first <= epoch; it = channels_.erase(it)) {
    it->second->close();
  }
  changed_.notify_all();
}

}  // namespace butterfly
