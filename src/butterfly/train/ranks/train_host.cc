#include "butterfly/train/ranks/train_host.h"

#include <optional>

#include "butterfly/base/log.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/train/ranks/rank_child.h"

namespace butterfly {
namespace {

constexpr std::chrono::seconds kSaysStepEvery{10};

/// A name for people: a run may have none, and a peer chose it.
std::string model_of(const RunConfig& config) {
  return printable(config.shape.name.empty() ? config.shape.architecture : config.shape.name);
}

}  // namespace

/// Knows how far the run is, and says it in this worker's log: the first step of each epoch, one each few seconds, the
/// last.
class TrainHost::Progress {
 public:
  Progress(TrainHost& host, const std::string& model) : host_(host), model_(model) {
    std::lock_guard lock(host_.mutex_);
    host_.runs_before_s_ += host_.status_.computing_s;
    host_.status_ = {.model = model};
    host_.epoch_ = {};
  }

  void begin(Epoch epoch, int rank, int ranks) {
    std::lock_guard lock(host_.mutex_);
    host_.epoch_ = epoch;
    host_.status_.rank = rank;
    host_.status_.ranks = ranks;
  }

  TrainObserver observer() {
    TrainObserver observer;
    observer.note = [this](const std::string& text) {
      log().info("training {}: {}", model_, text);
      said_ = {};
    };
    observer.step = [this](const StepReport& report, std::int64_t steps) { step(report, steps); };
    return observer;
  }

 private:
  void step(const StepReport& report, std::int64_t steps) {
    {
      std::lock_guard lock(host_.mutex_);
      RankStatus& status = host_.status_;
      status.step = report.step + 1;
      status.steps = steps;
      status.loss = report.loss;
      status.waiting_s += report.phases.communication_exposed_s;
      status.computing_s += report.phases.total_s - report.phases.communication_exposed_s;
    }
    const auto now = std::chrono::steady_clock::now();
    const bool last = report.stop || report.step + 1 == steps;
    if (!last && said_ && now - *said_ < kSaysStepEvery) return;
    said_ = now;
    log().info("training {}: step {}/{}, loss {:.4f}", model_, report.step + 1, steps, report.loss);
  }

  TrainHost& host_;
  const std::string model_;
  std::optional<std::chrono::steady_clock::time_point> said_;  // in this epoch
};

RankStatus TrainHost::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

Epoch TrainHost::epoch() const {
  std::lock_guard lock(mutex_);
  return epoch_;
}

double TrainHost::computing_s() const {
  std::lock_guard lock(mutex_);
  return runs_before_s_ + status_.computing_s;
}

Status TrainHost::take_part(const RankConnections& connections, std::stop_token stop) {
  RankControl leader(connections.leader);
  const std::stop_callback give_up(stop, [&] { leader.close(); });
  Tokens tokens;
  auto task = prepare(connections, tokens);
  if (!task) {
    [[maybe_unused]] const Status told =
        leader.send({.kind = RankMessageKind::kFailed, .text = task.error().message, .code = task.error().code});
    return tl::unexpected(task.error());
  }
  BF_TRY(leader.send({.kind = RankMessageKind::kReady}));
  const RanksOptions options{
      .make_trainer = [&](const RunConfig& config, const TrainRank& rank) -> Result<std::unique_ptr<RankTrainer>> {
        BF_ASSIGN_OR_RETURN(
            RunParts parts,
            make_run_parts(config, rank, {.isa = task->isa, .shape = task->config.shape, .tokens = &tokens.files}));
        parts.first_state = task->first_state;
        return make_trainer(std::move(parts), rank);
      },
      .member_timeout = options_.member_timeout,
      .shared_memory = options_.shared_memory};
  RankChild child{.number = task->number, .leader = leader, .listener = connections.members};
  child.mesh.session = connections.session;
  child.mesh.access = connections.access;
  child.stop = stop;
  child.run_end = options_.run_end;
  Progress progress(*this, model_of(task->config));
  child.observer = progress.observer();
  child.began = [&](Epoch epoch, int rank, int ranks) { progress.begin(epoch, rank, ranks); };
  BF_TRY(run_rank_child(child, task->config, options));
  log().info("training {}: the run is over", model_of(task->config));
  return {};
}

/// What the run is, and everything that it is about.
Result<RankTask> TrainHost::prepare(const RankConnections& connections, Tokens& tokens) {
  RankControl leader(connections.leader);
  BF_ASSIGN_OR_RETURN(RankMessage message, leader.receive(std::chrono::steady_clock::now() + options_.member_timeout));
  if (message.kind != RankMessageKind::kTask) {
    return make_error(ErrorCode::kProtocol, "rank 0 said {} before it said what the run is",
                      static_cast<int>(message.kind));
  }
  RankTask task = std::move(*message.task);
  BF_TRY(check(task));
  BF_TRY(fetch(connections, task, tokens));
  task.config.threads = options_.threads;
  return task;
}

Status TrainHost::check(const RankTask& task) const {
  if (task.isa <= options_.isa) return {};
  return make_error(ErrorCode::kUnsupported, "the run computes with {}, this worker has {}", to_string(task.isa),
                    to_string(options_.isa));
}

/// Opens those that are here; the places of the others.
Result<std::vector<std::size_t>> TrainHost::look_up(const RankTask& task, Tokens& tokens) {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < task.tokens.size(); ++i) {
    const TaskTokens& wanted = task.tokens[i];
    BF_ASSIGN_OR_RETURN(const auto path, local_.find(wanted.sha256, wanted.bytes));
    if (!path) {
      missing.push_back(i);
      continue;
    }
    log().info("tokens from {}", *path);
    BF_ASSIGN_OR_RETURN(TokenFile file, TokenFile::open(*path));
    if (const Status unchanged = local_.check(*path); !unchanged) {
      log().warn("{}", unchanged.error().message);
      missing.push_back(i);
      continue;
    }
    tokens.files.insert_or_assign(wanted.name, std::move(file));
  }
  return missing;
}

Status TrainHost::fetch(const RankConnections& connections, const RankTask& task, Tokens& tokens) {
  BF_ASSIGN_OR_RETURN(const auto missing, look_up(task, tokens));
  std::uint64_t left = options_.token_bytes_max == 0 ? UINT64_MAX : options_.token_bytes_max;
  for (const std::size_t place : missing) {
    const std::uint64_t bytes = task.tokens[place].bytes;
    if (bytes > left) {
      return make_error(ErrorCode::kNoMemory,
                        "the tokens of the run have {} bytes more, {} of the {} that this worker offers are left: a "
                        "token file below its --model-dir needs none",
                        bytes, left, options_.token_bytes_max);
    }
    left -= bytes;
  }
  RankControl leader(connections.leader);
  BF_TRY(leader.send({.kind = RankMessageKind::kWanted, .wanted = missing}));
  for (const std::size_t place : missing) {
    const TaskTokens& wanted = task.tokens[place];
    BF_ASSIGN_OR_RETURN(AlignedBuffer buffer, receive_tokens(*connections.leader, wanted, options_.member_timeout));
    BF_ASSIGN_OR_RETURN(TokenFile file,
                        TokenFile::parse({buffer.data(), static_cast<std::size_t>(buffer.bytes())}, wanted.name));
    tokens.files.insert_or_assign(wanted.name, std::move(file));
    tokens.received.push_back(std::move(buffer));
  }
  return {};
}

}  // namespace butterfly
