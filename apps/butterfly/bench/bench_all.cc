// butterfly bench all: the other benchmarks, one after another, each in a process of its own, as one object or one
// text.
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <thread>

#include "bench/bench.h"
#include "bench/temporary_folder.h"
#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "butterfly/machine/usage/stolen_time.h"
#include "butterfly/trace/trace.h"
#include "shared/child_process.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kOutputBytesMax = std::size_t{64} << 20;

struct AllCommand {
  std::vector<std::string> only, skip;
  bool quick = false;
  bool json = false;
};

/// What a benchmark is asked for in a whole run, and in a quick one. `served`: it needs a server, which is started.
struct BenchEntry {
  const char* name;
  std::vector<std::string> whole{}, quick{};
  bool served = false;
};

const std::vector<BenchEntry>& bench_entries() {
  static const std::vector<BenchEntry> entries{
      {.name = "kernels",
       .quick = {"--types", "f32,bf16,q8_0,q4_0,q4_k", "--rows", "1,64", "--mib", "32", "--rounds", "2"}},
      {.name = "memory", .quick = {"--rounds", "3"}},
      {.name = "wire",
       .whole = {"--bytes-max", "16777216"},
       .quick = {"--rounds", "1", "--bytes-max", "1048576", "--bytes", "1048576"}},
      {.name = "collectives", .quick = {"--rounds", "3", "--bytes-max", "1048576"}},
      {.name = "plan", .quick = {"--nodes", "4,16", "--rounds", "1"}},
      {.name = "model",
       .whole = {"--shapes", "gpt2-124m,bert-base,t5-small,llama-1.1b", "--prefill", "256", "--decode", "32"},
       .quick = {"--shapes", "gpt2-124m,bert-base,t5-small,llama-1.1b", "--prefill", "64", "--decode", "8", "--rounds",
                 "2", "--node-counts", "1,2"}},
      {.name = "train", .quick = {"--models", "tinytransformer-tiny", "--steps", "5"}},
      {.name = "serve",
       .whole = {"--requests", "64", "--rate", "0", "--prompt-words", "16", "--answer-tokens", "32"},
       .quick = {"--requests", "16", "--rate", "0", "--prompt-words", "16", "--answer-tokens", "16"},
       .served = true},
      {.name = "sgd", .quick = {"--rounds", "1", "--steps", "50"}},
  };
  return entries;
}

std::vector<std::string> bench_names() {
  std::vector<std::string> names;
  for (const BenchEntry& entry : bench_entries()) names.emplace_back(entry.name);
  return names;
}

/// What disturbed a measurement: the host of a virtual machine, and other programs of this one.
class Disturbance {
 public:
  double stolen() const { return stolen_.share(); }

  /// Of all CPUs, since then; 0 where the system does not say. Own children count once they were waited for.
  double others() const {
    const std::optional<CpuTicks> now = read_cpu_ticks();
    if (!now || !begin_) return 0;
    const double busy = static_cast<double>(now->busy - begin_->busy) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    const double all =
        static_cast<double>(trace::now_ns() - begin_ns_) * 1e-9 * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
    return std::clamp((busy - (own_cpu_s() - own_)) / all, 0.0, 1.0);
  }

 private:
  static double own_cpu_s() {
    double sum = 0;
    for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage usage{};
      ::getrusage(who, &usage);
      for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
        sum += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
      }
    }
    return sum;
  }

  const StolenTime stolen_;
  const std::optional<CpuTicks> begin_ = read_cpu_ticks();
  const std::uint64_t begin_ns_ = trace::now_ns();
  const double own_ = own_cpu_s();
};

struct BenchRun {
  std::vector<std::string> words{};
  int exit_code = 0;
  double seconds = 0, stolen = 0, others = 0;
  std::string output{}, error{};
};

/// The last line that a child wrote, which says why it failed.
std::string last_line(const std::string& path) {
  const Result<std::string> text = read_file(path, kOutputBytesMax);
  if (!text) return text.error().message;
  const std::size_t end = text->find_last_not_of("\n");
  if (end == std::string::npos) return {};
  const std::size_t begin = text->find_last_of('\n', end);
  return one_line(text->substr(begin == std::string::npos ? 0 : begin + 1, end - begin));
}

/// Its exit code. Errors: kIo; kCancelled where Ctrl-C, which goes to the child, ended it.
Result<int> run_to_end(const TemporaryFolder& folder, const std::vector<std::string>& words) {
  BF_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::start({.words = words, .output = folder.file("output"), .errors = folder.file("errors")}));
  BF_ASSIGN_OR_RETURN(const int code, child.wait());
  if (code == kExitInterrupted || child.interrupted_meanwhile())
    return make_error(ErrorCode::kCancelled, "interrupted");
  return code;
}

/// `butterfly serve` of a small model with random weights, which ends with this.
class BenchServer {
 public:
  static Result<BenchServer> start(const TemporaryFolder& folder) {
    const std::string model = folder.file("model.gguf");
    BF_ASSIGN_OR_RETURN(const int made, run_to_end(folder, {"convert", "--random", "butterfly-demo", "--type", "q8_0",
                                                            "--pure", model}));
    if (made != 0) return make_error(ErrorCode::kIo, "no model to serve: {}", last_line(folder.file("errors")));
    const std::string errors = folder.file("server");
    BF_ASSIGN_OR_RETURN(
        ChildProcess child,
        ChildProcess::start(
            {.words = {"serve", "-m", model, "--listen", "127.0.0.1:0", "--log-format", "off"}, .errors = errors}));
    BenchServer server(std::move(child));
    constexpr int kLooks = 600;
    for (int look = 0; look < kLooks && !server.child_.ended(); ++look) {
      const std::string said = read_file(errors, kOutputBytesMax).value_or(std::string());
      const std::size_t at = said.find("ready at ");
      const std::size_t end = said.find('\n', at == std::string::npos ? 0 : at);
      if (at != std::string::npos && end != std::string::npos) {
        const std::string rest = said.substr(at + 9, end - at - 9);
        server.url_ = rest.substr(0, rest.find_first_of(" ,;"));
        return server;
      }
      if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return make_error(ErrorCode::kUnavailable, "no server came up: {}", last_line(errors));
  }
  BenchServer(BenchServer&&) = default;
  ~BenchServer() {
    child_.terminate();
    if (!child_.ended()) (void)child_.wait();
  }
  const std::string& url() const { return url_; }

 private:
  explicit BenchServer(ChildProcess child) : child_(std::move(child)) {}
  ChildProcess child_;
  std::string url_;
};

/// Errors are of this process; those of the child are in the result.
Result<BenchRun> run_entry(const BenchEntry& entry, const AllCommand& command, const TemporaryFolder& folder) {
  BenchRun run;
  run.words = {"bench", entry.name};
  std::optional<BenchServer> server;
  if (entry.served) {
    Result<BenchServer> started = BenchServer::start(folder);
    if (!started && started.error().code == ErrorCode::kCancelled) return tl::unexpected(started.error());
    if (!started) {
      run.exit_code = kExitBadInput;
      run.error = started.error().message;
      return run;
    }
    server.emplace(std::move(*started));
    run.words.insert(run.words.end(), {"--url", server->url()});
  }
  const auto& options = command.quick ? entry.quick : entry.whole;
  run.words.insert(run.words.end(), options.begin(), options.end());
  if (command.json) run.words.emplace_back("--json");
  const Disturbance disturbance;
  const std::uint64_t begin = trace::now_ns();
  BF_ASSIGN_OR_RETURN(run.exit_code, run_to_end(folder, run.words));
  run.seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  server.reset();
  run.stolen = disturbance.stolen();
  run.others = disturbance.others();
  if (run.exit_code != 0) {
    run.error = last_line(folder.file("errors"));
    if (run.error.empty()) run.error = fmt::format("ended with status {}", run.exit_code);
    return run;
  }
  BF_ASSIGN_OR_RETURN(run.output, read_file(folder.file("output"), kOutputBytesMax));
  return run;
}

nlohmann::ordered_json rates_json(const Rates& rates) {
  return {{"memory_read_gb_per_s", rates.memory_read_gb_per_s},
          {"fp32_gflops", rates.fp32_gflops},
          {"int8_gops", rates.int8_gops}};
}

Result<nlohmann::ordered_json> machine_json() {
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  BF_ASSIGN_OR_RETURN(const Peaks peaks, measure_peaks({.isa = isa, .threads = topology.usable_threads}));
  utsname system{};
  ::uname(&system);
  nlohmann::ordered_json j{{"cpu", topology.cpu_name},
                           {"cores", topology.cores},
                           {"usable_threads", topology.usable_threads},
                           {"numa_nodes", topology.numa_nodes},
                           {"memory_bytes", topology.memory_bytes},
                           {"system", fmt::format("{} {}", system.sysname, system.release)},
                           {"isa", to_string(isa)}};
  j["one_thread"] = rates_json(peaks.one_thread);
  j["all_threads"] = rates_json(peaks.team);
  return j;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

nlohmann::ordered_json run_json(const BenchRun& run) {
  nlohmann::ordered_json j{{"command", as_shell(run.words)},
                           {"exit_code", run.exit_code},
                           {"seconds", run.seconds},
                           {"stolen_cpu_share", run.stolen},
                           {"other_programs_cpu_share", run.others}};
  if (run.exit_code != 0) {
    j["error"] = run.error;
    return j;
  }
  j["result"] = parse_ordered_json(run.output);
  if (!j["result"].is_discarded()) return j;
  j["exit_code"] = kExitBadInput;
  j["error"] = "what it printed is no JSON";
  j.erase("result");
  return j;
}

Result<int> run_all(const AllCommand& command) {
  BF_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create());
  const Disturbance disturbance;
  const std::uint64_t begin = trace::now_ns();
  BF_ASSIGN_OR_RETURN(nlohmann::ordered_json machine, machine_json());
  nlohmann::ordered_json j{{"version", BUTTERFLY_VERSION},
                           {"begun", utc_now()},
                           {"quick", command.quick},
                           {"machine", std::move(machine)},
                           {"benchmarks", nlohmann::ordered_json::object()}};
  int failed = 0;
  for (const BenchEntry& entry : bench_entries()) {
    if (!command.only.empty() && std::ranges::count(command.only, entry.name) == 0) continue;
    if (std::ranges::count(command.skip, entry.name) > 0) continue;
    std::fprintf(stderr, "bench %s ...\n", entry.name);
    BF_ASSIGN_OR_RETURN(const BenchRun run, run_entry(entry, command, folder));
    if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
    if (run.exit_code != 0) std::fprintf(stderr, "bench %s failed: %s\n", entry.name, run.error.c_str());
    if (run.exit_code == 0) std::fprintf(stderr, "bench %s: %.1f s\n", entry.name, run.seconds);
    if (!command.json) std::printf("== %s\n%s\n", as_shell(run.words).c_str(), run.output.c_str());
    std::fflush(stdout);
    auto& one = j["benchmarks"][entry.name] = run_json(run);
    if (one["exit_code"] != 0 && (command.json || run.exit_code != 0)) ++failed;
  }
  j["seconds"] = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  j["stolen_cpu_share"] = disturbance.stolen();
  j["other_programs_cpu_share"] = disturbance.others();
  if (command.json) print_json(j);
  if (!command.json) {
    std::printf("meanwhile the host took %.1f %% of the CPU time wanted, other programs %.1f %% of all CPUs\n",
                100 * disturbance.stolen(), 100 * disturbance.others());
  }
  if (failed > 0) std::fprintf(stderr, "butterfly: %d of the benchmarks failed\n", failed);
  return failed > 0 ? kExitBadInput : kExitOk;
}

}  // namespace

void add_bench_all(Command bench, Action& action) {
  auto sub = bench.add_subcommand("all", "Every benchmark here, one after another, as one JSON object or one text");
  const auto command = std::make_shared<AllCommand>();
  sub.add_option("--only", command->only, "These alone").comma_separated().one_of(bench_names());
  sub.add_option("--skip", command->skip, "All but these").comma_separated().one_of(bench_names());
  sub.add_flag("--quick", command->quick, "Small sizes and few rounds: some two minutes, to see that all works");
  sub.add_flag("--json", command->json, "One JSON object on stdout: the machine, and each benchmark's result by name");
  sub.footer(
      "Each runs as a process of its own with the options that its \"command\" shows, and one that fails does not end "
      "the others:\nthe exit code is 2 then. `serve` is measured with a server of a small random model, which is "
      "started for it.\nLeave the machine alone meanwhile: \"stolen_cpu_share\" is what the host of a virtual one "
      "took,\n\"other_programs_cpu_share\" what others used of its CPUs.\n"
      "  butterfly bench all --quick\n"
      "  butterfly bench all --json > bench.json && tools/make_performance.py --from bench.json   "
      "(docs/performance.md)\n"
      "  tools/bench_compare.py --before OLD --after NEW -- bench all --quick --only kernels,memory");
  run_later(sub, action, [command] { return run_all(*command); });
}

}  // namespace butterfly::app
