// butterfly bench collectives: all-reduce of floats among threads of this process, who read each other's memory or talk
// over loopback, by algorithm and size.
#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/collective/collectives.h"
#include "butterfly/wire/collective/mesh.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kSmallBytes = 2048;  // a step of a tiny network
constexpr int kSmallMembers = 10;

enum class MemberEngine : std::uint8_t { kInproc, kTcp };
constexpr std::array<const char*, 2> kEngineNames{"inproc", "tcp"};

struct CollectivesCommand {
  std::vector<int> members{2, 4};
  std::vector<std::string> engines{"inproc", "tcp"};
  std::vector<std::string> algorithms{"auto", "direct", "ring", "halving"};
  std::vector<std::size_t> sizes{};  // empty: powers of 4 between the borders
  std::size_t bytes_min = 1024;
  std::size_t bytes_max = std::size_t{64} << 20;
  std::uint64_t piece_bytes = CollectivesOptions{}.piece_bytes;
  int rounds = 9;
  bool small = true;
  bool json = false;
};

/// The members, all in this process, of one engine.
using Members = std::vector<std::unique_ptr<Collectives>>;

/// The times of one engine, number of members, algorithm and size.
struct Series {
  MemberEngine engine = MemberEngine::kInproc;
  int members = 0;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kAuto;
  std::size_t bytes = 0;
  std::vector<double> times_us;  // of one operation, a mean for each round

  double algorithm_gb_per_s() const { return static_cast<double>(bytes) / median(times_us) * 1e-3; }
  /// What each member's link carries in each direction, were the algorithm a ring: comparable between numbers of
  /// members.
  double bus_gb_per_s() const { return algorithm_gb_per_s() * 2.0 * (members - 1) / members; }
};

/// Calls work(rank) on a thread for each; the first error.
template <typename Work>
Status on_all(int members, const Work& work) {
  std::vector<Status> seen(static_cast<std::size_t>(members));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] { seen[static_cast<std::size_t>(rank)] = work(rank); });
  }
  for (auto& thread : threads) thread.join();
  for (const Status& status : seen) BF_TRY(status);
  return {};
}

Result<Members> make_members(MemberEngine engine, int count, const CollectivesOptions& options) {
  if (engine == MemberEngine::kInproc) return make_inproc_collectives(count, options);
  std::vector<std::unique_ptr<Listener>> listeners;
  MeshOptions mesh{.session = make_session_id()};
  // Who looks again for a message keeps a core from the member that sends it.
  if (count > usable_threads()) mesh.channel.spin = {};
  for (int rank = 0; rank < count; ++rank) {
    BF_ASSIGN_OR_RETURN(auto listener, Listener::create({}));
    mesh.addresses.push_back(listener->address());
    listeners.push_back(std::move(listener));
  }
  Members members(static_cast<std::size_t>(count));
  BF_TRY(on_all(count, [&](int rank) -> Status {
    MeshOptions mine = mesh;
    mine.rank = rank;
    BF_ASSIGN_OR_RETURN(auto channels,
                        connect_mesh(*listeners[static_cast<std::size_t>(rank)], mine, after_ms(10'000)));
    members[static_cast<std::size_t>(rank)] = make_collectives(rank, std::move(channels), options);
    return {};
  }));
  return members;
}

void add_floats(MutableByteSpan into, ByteSpan from) {
  auto* sums = reinterpret_cast<float*>(into.data());
  const auto* values = reinterpret_cast<const float*>(from.data());
  const std::size_t count = into.size() / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) sums[i] += values[i];
}

/// Ones everywhere become the number of members; where they do not, nobody waits for this one.
Status check_sum(Collectives& end, std::vector<float>& values, AllReduceAlgorithm algorithm) {
  std::ranges::fill(values, 1.0f);
  BF_TRY(end.all_reduce(std::as_writable_bytes(std::span(values)), sizeof(float), add_floats, algorithm));
  const auto sum = static_cast<float>(end.size());
  const auto wrong = std::ranges::find_if(values, [&](float value) { return value != sum; });
  if (wrong == values.end()) return {};
  end.abort();
  return make_error(ErrorCode::kBadData, "a sum of {} bytes is {}, not {}", values.size() * sizeof(float), *wrong, sum);
}

/// One round of all algorithms in turn, after each other so that what else the machine does meets all of them.
Status measure_round(const Members& members, std::vector<Series>& series) {
  const std::size_t bytes = series.front().bytes;
  const int count = static_cast<int>(std::clamp<std::size_t>((std::size_t{4} << 20) / bytes, 2, 200));
  return on_all(static_cast<int>(members.size()), [&](int rank) -> Status {
    Collectives& end = *members[static_cast<std::size_t>(rank)];
    std::vector<float> values(bytes / sizeof(float));
    const MutableByteSpan data = std::as_writable_bytes(std::span(values));
    for (Series& one : series) {
      BF_TRY(check_sum(end, values, one.algorithm));
      std::ranges::fill(values, 0.0f);  // sums of zeros stay what they are, however often
      BF_TRY(end.barrier());
      const std::uint64_t begin = trace::now_ns();
      for (int i = 0; i < count; ++i) BF_TRY(end.all_reduce(data, sizeof(float), add_floats, one.algorithm));
      if (rank == 0) one.times_us.push_back(static_cast<double>(trace::now_ns() - begin) * 1e-3 / count);
    }
    return {};
  });
}

void print_head() {
  std::printf("engine  members algorithm       bytes      median us  (smallest-largest)     algbw GB/s  busbw GB/s\n");
}

void print_series(const Series& series) {
  const auto [smallest, largest] = std::ranges::minmax(series.times_us);
  std::printf(
      "%-7s %7d %-9s %11zu %14.1f  %-22s %10.3f  %10.3f\n", kEngineNames[static_cast<std::size_t>(series.engine)],
      series.members, std::string(to_string(series.algorithm)).c_str(), series.bytes, median(series.times_us),
      fmt::format("({:.1f}-{:.1f})", smallest, largest).c_str(), series.algorithm_gb_per_s(), series.bus_gb_per_s());
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const Series& series) {
  return {{"engine", kEngineNames[static_cast<std::size_t>(series.engine)]},
          {"members", series.members},
          {"algorithm", to_string(series.algorithm)},
          {"bytes", series.bytes},
          {"times_us", series.times_us},
          {"median_us", median(series.times_us)},
          {"algbw_gb_per_s", series.algorithm_gb_per_s()},
          {"busbw_gb_per_s", series.bus_gb_per_s()}};
}

Status measure_size(const Members& members, std::vector<Series> series, const CollectivesCommand& command,
                    std::vector<Series>& all) {
  for (int round = 0; round < command.rounds; ++round) {
    if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
    BF_TRY(measure_round(members, series));
  }
  for (Series& one : series) {
    if (!command.json) print_series(one);
    all.push_back(std::move(one));
  }
  return {};
}

/// Between threads there is one algorithm only.
std::vector<AllReduceAlgorithm> algorithms_of(MemberEngine engine, const CollectivesCommand& command) {
  if (engine == MemberEngine::kInproc) return {AllReduceAlgorithm::kAuto};
  std::vector<AllReduceAlgorithm> chosen;
  for (const auto algorithm : {AllReduceAlgorithm::kAuto, AllReduceAlgorithm::kDirect, AllReduceAlgorithm::kRing,
                               AllReduceAlgorithm::kRecursiveHalving}) {
    if (std::ranges::count(command.algorithms, to_string(algorithm)) > 0) chosen.push_back(algorithm);
  }
  return chosen;
}

std::vector<std::size_t> sizes_of(const CollectivesCommand& command) {
  if (!command.sizes.empty()) return command.sizes;
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = command.bytes_min; bytes <= command.bytes_max; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

Status measure(MemberEngine engine, int count, const std::vector<std::size_t>& sizes, const CollectivesCommand& command,
               std::vector<Series>& all) {
  BF_ASSIGN_OR_RETURN(const Members members, make_members(engine, count, {.piece_bytes = command.piece_bytes}));
  for (const std::size_t bytes : sizes) {
    std::vector<Series> series;
    for (const AllReduceAlgorithm algorithm : algorithms_of(engine, command)) {
      series.push_back({.engine = engine, .members = count, .algorithm = algorithm, .bytes = bytes, .times_us = {}});
    }
    BF_TRY(measure_size(members, std::move(series), command, all));
  }
  return {};
}

Status run(const CollectivesCommand& command) {
  for (const std::size_t bytes : sizes_of(command)) {
    if (bytes % sizeof(float) == 0) continue;
    return make_error(ErrorCode::kInvalidArgument, "{} bytes are no whole floats of {}", bytes, sizeof(float));
  }
  std::vector<Series> all;
  if (!command.json) print_head();
  for (const auto engine : {MemberEngine::kInproc, MemberEngine::kTcp}) {
    if (std::ranges::count(command.engines, kEngineNames[static_cast<std::size_t>(engine)]) == 0) continue;
    for (const int count : command.members) BF_TRY(measure(engine, count, sizes_of(command), command, all));
    if (command.small) BF_TRY(measure(engine, kSmallMembers, {kSmallBytes}, command, all));
  }
  if (command.json) {
    auto j = nlohmann::ordered_json::array();
    for (const Series& series : all) j.push_back(to_json(series));
    print_json(j);
  } else {
    std::printf(
        "members are threads of this process; inproc: they read each other's memory, tcp: plain loopback. A round is "
        "the "
        "mean of 2 to 200 operations, the median is over rounds.\nalgbw = bytes / time; busbw = algbw x 2 (n-1)/n, "
        "what "
        "a link carries in each direction in a ring.\n");
  }
  return {};
}

}  // namespace

void add_bench_collectives(Command bench, Action& action) {
  auto sub = bench.add_subcommand("collectives", "All-reduce by engine, members, algorithm and size");
  const auto command = std::make_shared<CollectivesCommand>();
  sub.add_option("--members", command->members, "Numbers of members").comma_separated().in_range(1, 64);
  sub.add_option("--engine", command->engines, "Engines: inproc, tcp").comma_separated().one_of({"inproc", "tcp"});
  sub.add_option("--algorithm", command->algorithms, "Over tcp: auto, direct, ring, halving")
      .comma_separated()
      .one_of({"auto", "direct", "ring", "halving"});
  sub.add_option("--sizes", command->sizes, "Bytes, multiples of 4; default: powers of 4 from --bytes-min")
      .comma_separated()
      .in_range(4, 1 << 30);
  sub.add_option("--bytes-min", command->bytes_min, "Smallest size").in_range(4, 1 << 30);
  sub.add_option("--bytes-max", command->bytes_max, "Largest size").in_range(4, 1 << 30);
  sub.add_option("--piece-bytes", command->piece_bytes, "Piece size of a pipelined transfer")
      .in_range(1, 1 << 30)
      .show_default();
  sub.add_option("--rounds", command->rounds, "Rounds for each size").in_range(1, 1000).show_default();
  sub.add_flag("!--no-small", command->small, "Leave out 2 KiB among 10 members");
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
