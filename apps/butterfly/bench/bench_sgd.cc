// butterfly bench sgd: synchronous SGD of a network of 430 parameters on many ranks, threads of this process or
// processes over loopback: what an exchange of small gradients costs, in a run that learns.
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "bench/bench.h"
#include "bench/sgd/sgd_replica.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/collective/mesh.h"

namespace butterfly::app {
namespace {

// What the system printed whose workload this is, with 10 nodes; it sent gradients and applied none.
constexpr double kPeerBatchesPerS = 812.0, kPeerMegabytes = 767.0;
constexpr double kGoalBatchesPerS = 10.0 * kPeerBatchesPerS, kGoalMegabytes = 100.0;
constexpr std::int64_t kConnectMs = 30'000;

struct SgdCommand {
  int ranks = 10;
  int rounds = 5;
  std::vector<std::string> engines{"inproc", "tcp"};
  SgdOptions run{};
  bool json = false;
};

/// What one rank can say of one run.
struct RankFacts {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages = 0;  // sent and received; 0 between threads
};

struct Round {
  SgdRun run;  // of rank 0
  RankFacts facts;
  double megabytes = 0.0;  // proportional share of memory of all processes, 10^6 bytes
};

struct EngineSeries {
  std::string engine;
  std::vector<Round> rounds;
};

double batches_per_s(const Round& round, const SgdCommand& command) {
  return static_cast<double>(command.ranks) * command.run.steps / round.run.seconds;
}

/// Proportional set size: pages that several processes share count once, in parts.
Result<double> proportional_megabytes(pid_t process) {
  const std::string path = fmt::format("/proc/{}/smaps_rollup", process);
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    double kib = 0.0;
    if (words >> name >> kib && name == "Pss:") return kib * 1024e-6;
  }
  return make_error(ErrorCode::kIo, "{}: has no line of Pss", path);
}

/// A run of one rank and its checks. Rank 0 adds up the memory of `processes` while all of them still wait.
Result<Round> run_rank(Collectives& collectives, const SgdOptions& options, const std::vector<pid_t>& processes) {
  Round round;
  BF_ASSIGN_OR_RETURN(round.run, train_small_mlp(collectives, options));
  round.facts.bytes_sent = collectives.stats().bytes_sent;
  BF_TRY(collectives.barrier());
  if (collectives.rank() == 0) {
    for (const pid_t process : processes) {
      BF_ASSIGN_OR_RETURN(const double megabytes, proportional_megabytes(process));
      round.megabytes += megabytes;
    }
  }
  BF_TRY(collectives.barrier());
  BF_TRY(check_replicas(collectives, round.run));
  BF_TRY(check_learned(round.run));
  return round;
}

Result<Round> run_threads(const SgdCommand& command) {
  auto members = make_inproc_collectives(command.ranks);
  std::vector<Result<Round>> rounds(members.size(), make_error(ErrorCode::kCancelled, "did not run"));
  const std::vector<pid_t> processes{::getpid()};
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      threads.emplace_back([&, rank] {
        rounds[rank] = run_rank(*members[rank], command.run, processes);
        if (!rounds[rank]) members[rank]->abort();
      });
    }
  }
  for (auto& round : rounds) {
    if (!round && round.error().code != ErrorCode::kUnavailable) return tl::unexpected(round.error());
  }
  return std::move(rounds.front());
}

/// One rank in a process of its own, and the listener that it has from the one that made it.
Result<Round> run_process(Listener& listener, const MeshOptions& mesh, const SgdOptions& options,
                          const std::vector<pid_t>& processes) {
  BF_ASSIGN_OR_RETURN(auto channels, connect_mesh(listener, mesh, after_ms(kConnectMs)));
  const auto collectives = make_collectives(mesh.rank, channels, {});
  auto round = run_rank(*collectives, options, processes);
  if (!round) collectives->abort();
  if (!round) return round;
  for (const auto& channel : channels) {
    if (channel) round->facts.messages += channel->stats().messages_sent + channel->stats().messages_received;
  }
  return round;
}

/// Ranks 1 and up, each a process that ends with its run; killed and reaped here, whatever happens.
class RankProcesses {
 public:
  RankProcesses() = default;
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (const pid_t process : processes_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
  }

  /// Forks all. Between rounds this process has no threads but the one that waits for signals.
  Status start(std::vector<std::unique_ptr<Listener>>& listeners, const MeshOptions& mesh, const SgdOptions& options) {
    for (std::size_t rank = 1; rank < listeners.size(); ++rank) {
      const pid_t process = ::fork();
      if (process < 0) return make_error(ErrorCode::kIo, "rank {} got no process", rank);
      if (process == 0) {
        MeshOptions mine = mesh;
        mine.rank = static_cast<int>(rank);
        for (std::size_t other = 0; other < listeners.size(); ++other) {
          if (other != rank) listeners[other].reset();
        }
        const auto round = run_process(*listeners[rank], mine, options, {});
        if (!round) std::fprintf(stderr, "rank %zu: %s\n", rank, round.error().message.c_str());
        ::_exit(round ? 0 : 1);
      }
      processes_.push_back(process);
    }
    return {};
  }

  /// After a run that went well.
  Status join() {
    for (; !processes_.empty(); processes_.pop_back()) {
      int status = 0;
      ::waitpid(processes_.back(), &status, 0);
      if (status == 0) continue;
      const std::size_t rank = processes_.size();
      processes_.pop_back();
      return make_error(ErrorCode::kUnavailable, "rank {} ended with status {}", rank, status);
    }
    return {};
  }

  const std::vector<pid_t>& ids() const { return processes_; }

 private:
  std::vector<pid_t> processes_;
};

Result<Round> run_processes(const SgdCommand& command) {
  MeshOptions mesh{.session = make_session_id()};
  // Who looks again for a message keeps a core from the rank that sends it.
  if (command.ranks > usable_threads()) mesh.channel.spin = {};
  std::vector<std::unique_ptr<Listener>> listeners;
  for (int rank = 0; rank < command.ranks; ++rank) {
    BF_ASSIGN_OR_RETURN(auto listener, Listener::create({.channel = mesh.channel}));
    mesh.addresses.push_back(listener->address());
    listeners.push_back(std::move(listener));
  }
  RankProcesses others;
  BF_TRY(others.start(listeners, mesh, command.run));
  listeners.resize(1);
  std::vector<pid_t> all = others.ids();
  all.push_back(::getpid());
  BF_ASSIGN_OR_RETURN(Round round, run_process(*listeners.front(), mesh, command.run, all));
  BF_TRY(others.join());
  return round;
}

/// What a message of a mean size costs beside system calls: its header written and read, its checksum made and checked.
double seconds_per_message(std::size_t bytes) {
  std::vector<std::byte> payload(bytes, std::byte{1});
  constexpr int kCount = 20'000;
  std::uint64_t seen = 0;  // so that nothing is left out
  const std::uint64_t begin = trace::now_ns();
  for (int i = 0; i < kCount; ++i) {
    const FrameHeader header{
        .tag = static_cast<std::uint64_t>(i), .payload_bytes = bytes, .body_checksum = body_checksum({}, payload)};
    const auto decoded = decode_frame_header(encode_frame_header(header), {});
    seen += decoded ? decoded->tag + body_checksum({}, payload) : 0;
  }
  const std::uint64_t end = trace::now_ns();
  return seen == 0 ? 0.0 : static_cast<double>(end - begin) * 1e-9 / kCount;
}

/// Sizes of rank 0, a sender of half of its messages; a message is made by one rank and read by another.
double serialisation_s(const Round& round) {
  if (round.facts.messages == 0) return 0.0;
  const double sent = static_cast<double>(round.facts.messages) / 2;
  return sent * seconds_per_message(static_cast<std::size_t>(static_cast<double>(round.facts.bytes_sent) / sent));
}

template <typename Value>
std::vector<double> values(const EngineSeries& series, const Value& value) {
  std::vector<double> all;
  for (const Round& round : series.rounds) all.push_back(value(round));
  return all;
}

nlohmann::ordered_json to_json(const EngineSeries& series, const SgdCommand& command) {
  const auto speeds = values(series, [&](const Round& round) { return batches_per_s(round, command); });
  const auto memory = values(series, [](const Round& round) { return round.megabytes; });
  const Round& last = series.rounds.back();
  return {{"engine", series.engine},
          {"ranks", command.ranks},
          {"parameters", kMlpParameters},
          {"batch", command.run.batch},
          {"steps", command.run.steps},
          {"batches_per_s", speeds},
          {"median_batches_per_s", median(speeds)},
          {"pss_megabytes", memory},
          {"median_pss_megabytes", median(memory)},
          {"bytes_sent_per_step_and_rank", static_cast<double>(last.facts.bytes_sent) / command.run.steps},
          {"serialisation_s", median(values(series, serialisation_s))},
          {"compression", "off"},
          {"seconds", median(values(series, [](const Round& round) { return round.run.seconds; }))},
          {"first_loss", last.run.first_loss},
          {"last_loss", last.run.last_loss},
          {"weights_checked_steps", last.run.checksums.size()}};
}

void print_head(const SgdCommand& command) {
  std::printf(
      "%d ranks, network 10-20-10 (%zu parameters), batch %zu, SGD rate %g, %d synchronous steps, %d rounds\n"
      "engine  batches/s  (smallest-largest)   memory MB  serialisation s  compression  of seconds  sent B/step  "
      "first loss  last loss  weights\n",
      command.ranks, kMlpParameters, command.run.batch, static_cast<double>(command.run.rate), command.run.steps,
      command.rounds);
}

void print_series(const EngineSeries& series, const SgdCommand& command) {
  const auto speeds = values(series, [&](const Round& round) { return batches_per_s(round, command); });
  const auto memory = values(series, [](const Round& round) { return round.megabytes; });
  const Round& last = series.rounds.back();
  const auto [smallest, largest] = std::ranges::minmax(speeds);
  std::printf("%-6s %10.0f  %-19s %10.1f %16.4f  %-11s %11.2f %12.0f %11.4f %10.4f  equal in %zu steps\n",
              series.engine.c_str(), median(speeds), fmt::format("({:.0f}-{:.0f})", smallest, largest).c_str(),
              median(memory), median(values(series, serialisation_s)), "off",
              median(values(series, [](const Round& round) { return round.run.seconds; })),
              static_cast<double>(last.facts.bytes_sent) / command.run.steps, last.run.first_loss, last.run.last_loss,
              last.run.checksums.size());
  std::fflush(stdout);
}

void print_findings(const std::vector<EngineSeries>& all, const SgdCommand& command) {
  std::printf(
      "theirs %10.0f  %-19s %10.1f   the original of this workload, 10 nodes over RPC, as it printed: no optimizer "
      "step\n",
      kPeerBatchesPerS, "", kPeerMegabytes);
  for (const EngineSeries& series : all) {
    const double speed = median(values(series, [&](const Round& round) { return batches_per_s(round, command); }));
    const double memory = median(values(series, [](const Round& round) { return round.megabytes; }));
    std::printf("%s: %.1f times the original's batches/s (goal 10: %s), %.1f MB (goal at most %.0f: %s)\n",
                series.engine.c_str(), speed / kPeerBatchesPerS, speed >= kGoalBatchesPerS ? "reached" : "missed",
                memory, kGoalMegabytes, memory <= kGoalMegabytes ? "reached" : "missed");
  }
  std::printf(
      "batches/s: ranks x steps / seconds, making of the data and checksums of the weights included. inproc: ranks are "
      "threads; tcp: processes, plain loopback.\nmemory: Pss of all processes, added up after the last step. "
      "serialisation: rank 0's headers and checksums, timed apart, times its messages; floats travel from where\nthey "
      "lie, and threads read each other's. 1.7 KB are not compressed, which takes no time. weights: checksums of all "
      "ranks after "
      "every step, and SHA-256 at the end. A guess has the loss ln 10 = %.4f.\n",
      std::log(10.0));
}

Status run(const SgdCommand& command) {
  std::vector<EngineSeries> all;
  for (const std::string& engine : command.engines) all.push_back({.engine = engine, .rounds = {}});
  if (!command.json) print_head(command);
  for (int round = 0; round < command.rounds; ++round) {
    for (EngineSeries& series : all) {
      if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
      BF_ASSIGN_OR_RETURN(Round done, series.engine == "tcp" ? run_processes(command) : run_threads(command));
      series.rounds.push_back(std::move(done));
    }
  }
  if (command.json) {
    auto j = nlohmann::ordered_json::array();
    for (const EngineSeries& series : all) j.push_back(to_json(series, command));
    print_json(j);
  } else {
    for (const EngineSeries& series : all) print_series(series, command);
    print_findings(all, command);
  }
  return {};
}

}  // namespace

void add_bench_sgd(Command bench, Action& action) {
  auto sub = bench.add_subcommand("sgd", "Synchronous SGD of a tiny network on many ranks: batches/s and memory");
  const auto command = std::make_shared<SgdCommand>();
  sub.add_option("--ranks", command->ranks, "Threads or processes").in_range(1, 64).show_default();
  sub.add_option("--steps", command->run.steps, "Synchronous steps of a round").in_range(1, 1'000'000).show_default();
  sub.add_option("--batch", command->run.batch, "Samples of each rank and step").in_range(1, 4096).show_default();
  sub.add_option("--rate", command->run.rate, "Learning rate").in_range(0.0, 10.0).show_default();
  sub.add_option("--seed", command->run.seed, "Seed of the first weights and of the data")
      .whole_number()
      .show_default();
  sub.add_option("--engine", command->engines, "Engines: inproc, tcp").comma_separated().one_of({"inproc", "tcp"});
  sub.add_option("--rounds", command->rounds, "Rounds over all engines").in_range(1, 1000).show_default();
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
