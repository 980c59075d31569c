#include "butterfly/cluster/remote_cluster.h"

#include <algorithm>

#include "butterfly/base/log.h"
#include "butterfly/cluster/check_start.h"
#include "butterfly/cluster/weight_transfer.h"

namespace butterfly {

RemoteCluster::RemoteCluster(Roster& roster, std::vector<MemberPtr> members)
    : roster_(roster), members_(std::move(members)), health_(std::make_shared<Health>([this] {
        giving_up_.request_stop();
        std::lock_guard lock(mutex_);
        changed_.notify_all();
      })) {
  for (const MemberPtr& member : members_) nodes_.push_back(member->node);
}

RemoteCluster::~RemoteCluster() {
  stop();
}

RemoteCluster::Share* RemoteCluster::share_of(const Member& member) {
  const auto found = std::ranges::find(shares_, &member, [](const auto& share) { return share->member.get(); });
  return found == shares_.end() ? nullptr : found->get();
}

void RemoteCluster::on_gone(const Member& member, const Error& cause) {
  const Share* share = share_of(member);
  if (share == nullptr) {
    if (purpose_ == Purpose::kPrepare) return;
    log().warn("worker {}, which stood by, went away: {}", member.address, cause.message);
    return;
  }
  // Nothing is a failure any more once stop() has retired the health.
  health_->fail(
      {.code = ErrorCode::kUnavailable, .message = fmt::format("{} went away: {}", share->title, cause.message)});
}

void RemoteCluster::on_message(const Member& member, const control::ControlMessage& message) {
  Share* share = share_of(member);
  if (share == nullptr) {
    if (!message.has_leave() || purpose_ == Purpose::kPrepare) return;
    control::ControlMessage release;  // it stands by: nobody has to do without it first
    release.mutable_release();
    static_cast<void>(member.link->send(release));
    return;
  }
  std::unique_lock lock(mutex_);
  switch (message.body_case()) {
    case control::ControlMessage::kPong:
      if (Epoch(message.pong().epoch()) != epoch_) return;
      share->pong_sequence = std::max(share->pong_sequence, message.pong().sequence());
      if (message.pong().data_bytes_sent() >= share->sent.bytes_sent) {
        share->sent.bytes_sent = message.pong().data_bytes_sent();
        share->sent.bytes_saved = message.pong().data_bytes_saved();
        share->sent.lz4_messages = message.pong().lz4_messages();
        share->sent.zstd_messages = message.pong().zstd_messages();
      }
      share->work = {.steps = message.pong().steps(), .busy_ns = message.pong().busy_ns()};
      break;
    case control::ControlMessage::kReady:
      if (Epoch(message.ready().epoch()) != epoch_) return;
      share->ready = true;
      if (message.ready().has_file()) share->member->has_file = true;
      share->memory_bytes = message.ready().memory_bytes();
      share->exchange = parse_exchange_engine(message.ready().exchange());
      break;
    case control::ControlMessage::kPrepared:
      if (Epoch(message.prepared().epoch()) != epoch_) return;
      share->ready = true;
      break;
    case control::ControlMessage::kFailure: {
      if (Epoch(message.failure().epoch()) != epoch_) return;
      Error error = read_failure(message.failure(), share->title);
      if (!health_->failure()) share->complained = true;
      lock.unlock();
      // A closed connection, a late answer or a damaged message may be another worker's fault.
      if (ends_epoch(error)) {
        health_->suspect(std::move(error));
      } else {
        health_->fail(std::move(error));
      }
      return;
    }
    default:
      return;
  }
  changed_.notify_all();
}

Result<ChannelPtr> RemoteCluster::open_data(const Share& share, const char* label, Deadline deadline) const {
  ConnectOptions connecting;
  connecting.introduction = {
      .role = ConnectionRole::kData, .session = roster_.session(), .label = data_label(label, epoch_)};
  connecting.peer_name = fmt::format("worker {}", share.member->address);
  connecting.access = roster_.options().access;
  connecting.channel.spin = roster_.options().spin;
  connecting.stop = giving_up_.get_token();
  return connect_tcp(share.member->address, connecting, deadline);
}

Status RemoteCluster::open_channels(Deadline deadline) {
  // At once: a node that does not answer must not hold up those that do.
  std::vector<std::function<Status()>> openings;
  const auto pipeline_end = [&](const Share& share, const char* label, std::shared_ptr<Channel>& end) {
    openings.push_back([&, label, deadline]() -> Status {
      BF_ASSIGN_OR_RETURN(end, open_data(share, label, deadline));
      health_->watch(end);
      return {};
    });
  };
  if (purpose_ == Purpose::kRun) {
    pipeline_end(*shares_.front(), kInputLabel, input_);
    const auto is_last = [](const auto& share) {
      return share->assignment.leads() && share->assignment.rank.value + 1 == share->assignment.stages;
    };
    pipeline_end(**std::ranges::find_if(shares_, is_last), kOutputLabel, output_);
  }
  for (const auto& share : shares_) {
    openings.push_back([this, &one = *share, deadline]() -> Status {
      BF_ASSIGN_OR_RETURN(one.weights, open_data(one, kWeightsLabel, deadline));
      return {};
    });
  }
  std::vector<Status> opened(openings.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < openings.size(); ++i) {
      threads.emplace_back([&, i] {
        opened[i] = openings[i]();
        if (!opened[i]) giving_up_.request_stop();
      });
    }
  }
  Status first;
  for (const Status& status : opened) {
    if (status) continue;
    if (first || first.error().code == ErrorCode::kCancelled) first = status;  // the cause, not its consequences
  }
  return first;
}

/// Workers that have the model's file, another one in front for each share, so that no holder gives to all at once.
std::vector<std::string> RemoteCluster::holders_for(std::size_t share) const {
  constexpr std::size_t kHoldersMax = 4;
  std::vector<std::string> holders;
  for (const MemberPtr& member : members_) {
    if (member->has_file && member != shares_[share]->member) holders.push_back(member->address);
  }
  if (holders.empty()) return holders;
  std::ranges::rotate(holders, holders.begin() + static_cast<std::ptrdiff_t>(share % holders.size()));
  holders.resize(std::min(holders.size(), kHoldersMax));
  return holders;
}

Status RemoteCluster::assign() {
  for (const auto& share : shares_) {
    share->weight_server = std::thread([this, &channel = *share->weights] {
      static_cast<void>(serve_weights(channel, provider_, weight_bytes_));  // ends when the worker closes it
    });
  }
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const auto& share = shares_[i];
    share->assignment.holders = holders_for(i);
    control::ControlMessage message;
    store(share->assignment,
          purpose_ == Purpose::kRun ? *message.mutable_assign() : *message.mutable_prepare()->mutable_assign());
    BF_TRY(share->member->link->send(message));
  }
  return {};
}

Status RemoteCluster::wait_until_ready(const StartRequest& request, Deadline deadline) {
  constexpr std::chrono::milliseconds kProgressInterval{100};
  for (;;) {
    StartProgress progress{.stages = static_cast<int>(shares_.size())};
    std::string waiting_for;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return std::ranges::all_of(shares_, [](const auto& share) { return share->ready; }); };
      changed_.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kProgressInterval),
                          [&] { return ready() || health_->failure(); });
      for (const auto& share : shares_) {
        if (share->ready) {
          ++progress.ready;
        } else if (waiting_for.empty()) {
          waiting_for = share->title;
        }
      }
    }
    progress.weight_bytes = weight_bytes_;
    if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
    if (request.progress) request.progress(progress);
    if (progress.ready == progress.stages) return {};
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(ErrorCode::kTimeout, "{} was not ready in time; {} of {} were", waiting_for, progress.ready,
                        progress.stages);
    }
    if (request.stop.stop_requested()) {
      return make_error(ErrorCode::kCancelled, "cancelled while {} of {} workers were ready", progress.ready,
                        progress.stages);
    }
  }
}

Result<PipelineEnds> RemoteCluster::start(const StartRequest& request, Deadline deadline) {
  BF_TRY(check_start(request, nodes_.size(), started_));
  started_ = true;
  epoch_ = request.epoch;
  purpose_ = request.purpose;
  provider_ = request.weights;
  for (Assignment& assignment : make_assignments(request, nodes_)) {
    auto share = std::make_unique<Share>();
    const int node = request.plan.node_of_stage[shares_.size()];
    share->member = members_[static_cast<std::size_t>(node)];
    share->title = fmt::format("worker {} ({})", share->member->address, describe(assignment));
    share->assignment = std::move(assignment);
    shares_.push_back(std::move(share));
  }
  if (purpose_ == Purpose::kRun) roster_.release_leaving();  // the epoch that needed them has been stopped
  roster_.observe(this);
  attendant_ = std::thread([this] { health_->attend(Deadline::max()); });
  const std::stop_callback cancel(request.stop, [this] { giving_up_.request_stop(); });
  Status status;
  for (const auto& share : shares_) {
    // Deaths that were noticed before the observation began.
    const auto& link = share->member->link;
    if (!link || !link->usable()) on_gone(*share->member, {.message = "its connection is closed"});
  }
  if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
  status = open_channels(deadline);
  if (status) status = assign();
  if (!status && !request.stop.stop_requested()) {
    // Whoever died on the way is a better explanation than the connection that noticed.
    return tl::unexpected(health_->explain(status.error()));
  }
  if (status) status = wait_until_ready(request, deadline);
  if (!status) return tl::unexpected(std::move(status).error());
  if (purpose_ == Purpose::kPrepare) return PipelineEnds{};
  PipelineEnds ends{.input = make_pipeline_channel(input_, health_),
                    .output = make_pipeline_channel(output_, health_),
                    .memory_bytes = {},
                    .exchanges = {}};
  std::lock_guard lock(mutex_);
  for (const auto& share : shares_) {
    ends.memory_bytes.push_back(share->memory_bytes);
    ends.exchanges.push_back(share->exchange);
  }
  return ends;
}

std::vector<StageWork> RemoteCluster::work() const {
  std::lock_guard lock(mutex_);
  std::vector<StageWork> all;
  for (const auto& share : shares_) all.push_back(share->work);
  return all;
}

std::vector<std::string> RemoteCluster::complaining() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> addresses;
  for (const auto& share : shares_) {
    if (share->complained) addresses.push_back(share->member->address);
  }
  return addresses;
}

Result<DataTraffic> RemoteCluster::data_traffic(Deadline deadline) {
  const std::uint64_t sequence = roster_.ping();
  std::unique_lock lock(mutex_);
  const bool answered = changed_.wait_until(lock, deadline, [&] {
    return health_->failure() ||
           std::ranges::all_of(shares_, [&](const auto& share) { return share->pong_sequence >= sequence; });
  });
  if (auto error = health_->failure()) return tl::unexpected(std::move(*error));
  if (!answered) return make_error(ErrorCode::kTimeout, "not every worker said how much it sent");
  DataTraffic traffic;
  if (input_) traffic.add(input_->stats());
  for (const auto& share : shares_) traffic.add(share->sent);
  return traffic;
}

void RemoteCluster::stop() {
  if (std::exchange(stopped_, true)) return;
  if (!started_) return;
  health_->retire();
  roster_.forget(this);
  if (attendant_.joinable()) attendant_.join();
  for (const auto& channel : {input_, output_}) {
    if (channel) channel->close();
  }
  for (const auto& share : shares_) {
    if (share->weights) share->weights->close();
    if (share->weight_server.joinable()) share->weight_server.join();
  }
}

}  // namespace butterfly
