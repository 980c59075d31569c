// butterfly bench kernels: matmuls by type of weights and shape, attention, norms, softmax and conversions, each beside
// the roof that `study` holds operations against.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>

#include "bench/bench.h"
#include "bench/kernels/kernel_case.h"
#include "butterfly/base/json.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/rates/matmul_choice.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "butterfly/machine/usage/stolen_time.h"
#include "butterfly/study/analysis/roof.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly::app {
namespace {

struct KernelsCommand {
  std::vector<std::string> only, types, isas, shapes;
  std::vector<int> threads, rows{1, 128}, keys{512, 8192};
  int mib = 64;
  int rounds = 5;
  bool json = false;
};

/// An instruction set and a number of threads, and the most that they do of what bounds an operation.
struct KernelSetting {
  Isa isa = Isa::kReference;
  int threads = 1;
  std::unique_ptr<ThreadTeam> team{};
  Rates peaks{};
};

struct KernelRow {
  std::size_t setting = 0;
  std::string operation{}, type{}, shape{};
  double flops = 0, bytes = 0;    // of one call
  std::vector<double> seconds{};  // of one call, a mean for each round
};

/// What a row says of its operation.
struct KernelRates {
  double median_s = 0, least_s = 0, most_s = 0, gflops = 0, gb_per_s = 0, share_of_roof = 0;
  const char* bound = "memory";
};

/// The same roof as in reports of `study`, from the peaks of this run.
study::Roof roof_above(const Rates& peaks, std::string_view type) {
  study::Process process;
  process.facts = {{"peak.memory_gb_per_s", fmt::format("{}", peaks.memory_read_gb_per_s)},
                   {"peak.fp32_gflops", fmt::format("{}", peaks.fp32_gflops)},
                   {"peak.int8_gops", fmt::format("{}", peaks.int8_gops)}};
  return study::roof_of(process, type);
}

KernelRates rates_of(const KernelRow& row, const Rates& peaks) {
  // Attention multiplies floats, however its cache is stored.
  const study::Roof roof = roof_above(peaks, row.operation == "matmul" ? row.type : "f32");
  KernelRates rates{.median_s = median(row.seconds)};
  rates.least_s = std::ranges::min(row.seconds);
  rates.most_s = std::ranges::max(row.seconds);
  rates.gflops = row.flops / rates.median_s * 1e-9;
  rates.gb_per_s = row.bytes / rates.median_s * 1e-9;
  rates.share_of_roof = roof.least_s(row.flops, row.bytes) / rates.median_s;
  if (roof.least_s(row.flops, 0) > roof.least_s(0, row.bytes)) rates.bound = "arithmetic";
  return rates;
}

/// One thread's time is its own, not that of others on the processor meanwhile; a team's is the wall's.
double clock_s(int threads) {
  timespec time{};
  ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double larger(double a, double b) {
  return std::max(a, b);
}

class KernelsBench {
 public:
  explicit KernelsBench(int rounds) : rounds_(rounds) {}

  Status prepare(const std::vector<Isa>& isas, const std::vector<int>& threads) {
    for (const Isa isa : isas) {
      for (const int count : threads) {
        settings_.push_back({.isa = isa, .threads = count, .team = std::make_unique<ThreadTeam>(count)});
      }
    }
    return measure_peaks_again();
  }

  /// Other work makes a peak too small, nothing makes it too large: of several looks the largest counts.
  Status measure_peaks_again() {
    for (KernelSetting& one : settings_) {
      BF_ASSIGN_OR_RETURN(const Peaks now, measure_peaks({.isa = one.isa, .threads = one.threads}));
      one.peaks = {.memory_read_gb_per_s = larger(one.peaks.memory_read_gb_per_s, now.team.memory_read_gb_per_s),
                   .fp32_gflops = larger(one.peaks.fp32_gflops, now.team.fp32_gflops),
                   .int8_gops = larger(one.peaks.int8_gops, now.team.int8_gops)};
    }
    return {};
  }

  /// Every setting once in each round, after a round that is not counted.
  Status measure(const KernelCase& one) {
    const std::size_t first = rows_.size();
    for (std::size_t i = 0; i < settings_.size(); ++i) {
      rows_.push_back({.setting = i,
                       .operation = one.operation,
                       .type = one.type,
                       .shape = one.shape,
                       .flops = one.flops,
                       .bytes = one.bytes});
    }
    for (int round = 0; round <= rounds_; ++round) {
      for (std::size_t i = 0; i < settings_.size(); ++i) {
        if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
        const double seconds = seconds_of_call(one, settings_[i]);
        if (round > 0) rows_[first + i].seconds.push_back(seconds);
      }
    }
    return {};
  }

  const std::vector<KernelSetting>& settings() const { return settings_; }
  const std::vector<KernelRow>& rows() const { return rows_; }

 private:
  /// Long enough that reading the clock does not count.
  static double seconds_of_call(const KernelCase& one, const KernelSetting& setting) {
    constexpr double kLeastS = 2e-3;
    const Kernels& kernels = kernels_for(setting.isa);
    const double begin = clock_s(setting.threads);
    double spent = 0;
    int runs = 0;
    while (runs == 0 || spent < kLeastS) {
      one.run(kernels, *setting.team);
      ++runs;
      spent = clock_s(setting.threads) - begin;
    }
    return spent / (static_cast<double>(runs) * one.calls);
  }

  const int rounds_;
  std::vector<KernelSetting> settings_;
  std::vector<KernelRow> rows_;
};

constexpr std::array<const char*, 4> kKernelGroups{"matmul", "attention", "rows", "conversion"};

Result<std::vector<DType>> chosen_types(const std::vector<std::string>& names) {
  std::vector<DType> types;
  for (const std::string& name : names) {
    const std::optional<DType> type = parse_dtype(name);
    if (!type || !can_encode(*type)) {
      return make_error(ErrorCode::kInvalidArgument, "--types {}: known are {}", name, encodable_types());
    }
    types.push_back(*type);
  }
  if (!types.empty()) return types;
  std::ranges::copy_if(kAllDTypes, std::back_inserter(types), can_encode);
  return types;
}

/// The one that this program would use where none is named.
Result<std::vector<Isa>> chosen_isas(const std::vector<std::string>& names) {
  if (names.empty()) {
    BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
    return std::vector<Isa>{isa};
  }
  std::vector<Isa> isas;
  std::string known;
  for (const Isa isa : supported_isas()) {
    if (std::ranges::count(names, to_string(isa)) > 0) isas.push_back(isa);
    known += (known.empty() ? "" : ", ") + std::string(to_string(isa));
  }
  if (isas.size() != names.size()) {
    return make_error(ErrorCode::kInvalidArgument, "--isas names {} sets, of which {} are here: {}", names.size(),
                      isas.size(), known);
  }
  return isas;
}

/// "4096x11008": rows of activations are 4096 wide, results 11008.
Result<std::vector<MatrixShape>> chosen_shapes(const std::vector<std::string>& names) {
  constexpr int kWidest = 1 << 17;
  constexpr std::int64_t kLargest = 1 << 28;
  if (names.empty()) return layer_matrices();
  std::vector<MatrixShape> shapes;
  for (const std::string& name : names) {
    int in = 0, out = 0, read = 0;
    const bool parsed = std::sscanf(name.c_str(), "%6dx%6d%n", &in, &out, &read) == 2 && name[std::size_t(read)] == 0;
    if (!parsed || in < 1 || out < 1 || in > kWidest || out > kWidest || std::int64_t{in} * out > kLargest) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--shapes {}: expected INxOUT, each from 1 to {} and at most {} weights, as in 2048x5632", name,
                        kWidest, kLargest);
    }
    shapes.push_back({out, in, 0});
  }
  return shapes;
}

Result<std::vector<int>> chosen_threads(std::vector<int> threads) {
  const int usable = usable_threads();
  if (threads.empty()) threads = usable > 1 ? std::vector<int>{1, usable} : std::vector<int>{1};
  if (std::ranges::any_of(threads, [](int count) { return count < 1 || count > 1024; })) {
    return make_error(ErrorCode::kInvalidArgument, "--threads counts from 1 to 1024");
  }
  return threads;
}

Status measure_groups(const KernelsCommand& command, KernelsBench& bench, const std::vector<DType>& types,
                      const KernelWork& work) {
  const auto wanted = [&](const char* group) {
    return command.only.empty() || std::ranges::count(command.only, group) > 0;
  };
  const auto say = [](std::string_view what) { std::fprintf(stderr, "%s\n", std::string(what).c_str()); };
  const KernelVisit visit = [&](const KernelCase& one) { return bench.measure(one); };
  ThreadTeam packers(usable_threads());
  for (const DType type : types) {
    if (!wanted("matmul")) break;
    say(fmt::format("matmul, {}", to_string(type)));
    BF_TRY(visit_matmuls(type, work, packers, visit));
  }
  if (wanted("attention")) say("attention");
  if (wanted("attention")) BF_TRY(visit_attention(work, visit));
  if (wanted("rows")) say("norms, softmax, activations, quantisation");
  if (wanted("rows")) BF_TRY(visit_rows(work, visit));
  for (const DType type : types) {
    if (!wanted("conversion") || type == DType::kF32) continue;
    say(fmt::format("conversion, {}", to_string(type)));
    BF_TRY(visit_conversions(type, work, visit));
  }
  return bench.measure_peaks_again();
}

void print_table(const KernelsBench& bench) {
  for (std::size_t i = 0; i < bench.settings().size(); ++i) {
    const KernelSetting& setting = bench.settings()[i];
    std::printf("\n%s, %d thread%s: fp32 %.0f GFLOP/s, int8 %.0f GOP/s, memory %.1f GB/s\n\n",
                std::string(to_string(setting.isa)).c_str(), setting.threads, setting.threads == 1 ? "" : "s",
                setting.peaks.fp32_gflops, setting.peaks.int8_gops, setting.peaks.memory_read_gb_per_s);
    std::printf("| operation | type | shape | us, median (spread) | GFLOP/s | GB/s | of roof | bound |\n");
    std::printf("|---|---|---|--:|--:|--:|--:|---|\n");
    for (const KernelRow& row : bench.rows()) {
      if (row.setting != i) continue;
      const KernelRates rates = rates_of(row, setting.peaks);
      std::printf("| %s | %s | %s | %.1f (%.1f-%.1f) | %.1f | %.1f | %.0f %% | %s |\n", row.operation.c_str(),
                  row.type.c_str(), row.shape.c_str(), rates.median_s * 1e6, rates.least_s * 1e6, rates.most_s * 1e6,
                  rates.gflops, rates.gb_per_s, rates.share_of_roof * 100, rates.bound);
    }
  }
}

nlohmann::ordered_json kernels_json(const KernelsBench& bench, double stolen) {
  nlohmann::ordered_json j{{"stolen_cpu_share", stolen}};
  for (const KernelSetting& setting : bench.settings()) {
    j["peaks"].push_back({{"isa", to_string(setting.isa)},
                          {"threads", setting.threads},
                          {"memory_read_gb_per_s", setting.peaks.memory_read_gb_per_s},
                          {"fp32_gflops", setting.peaks.fp32_gflops},
                          {"int8_gops", setting.peaks.int8_gops}});
  }
  for (const KernelRow& row : bench.rows()) {
    const KernelSetting& setting = bench.settings()[row.setting];
    const KernelRates rates = rates_of(row, setting.peaks);
    j["kernels"].push_back({{"operation", row.operation},
                            {"type", row.type},
                            {"shape", row.shape},
                            {"isa", to_string(setting.isa)},
                            {"threads", setting.threads},
                            {"flops", row.flops},
                            {"bytes", row.bytes},
                            {"median_s", rates.median_s},
                            {"least_s", rates.least_s},
                            {"most_s", rates.most_s},
                            {"gflops", rates.gflops},
                            {"gb_per_s", rates.gb_per_s},
                            {"share_of_roof", rates.share_of_roof},
                            {"bound", rates.bound}});
  }
  return j;
}

Status run_kernels(const KernelsCommand& command) {
  BF_ASSIGN_OR_RETURN(const std::vector<DType> types, chosen_types(command.types));
  BF_ASSIGN_OR_RETURN(const std::vector<Isa> isas, chosen_isas(command.isas));
  BF_ASSIGN_OR_RETURN(const std::vector<int> threads, chosen_threads(command.threads));
  KernelWork work{.keys = command.keys, .bytes = static_cast<std::uint64_t>(command.mib) << 20};
  BF_ASSIGN_OR_RETURN(work.shapes, chosen_shapes(command.shapes));
  work.rows.assign(command.rows.begin(), command.rows.end());
  choose_prefetch(remembered_choices(isas.back()).prefetch.prefetch);
  const StolenTime stolen;
  KernelsBench bench(command.rounds);
  BF_TRY(bench.prepare(isas, threads));
  BF_TRY(measure_groups(command, bench, types, work));
  if (command.json) {
    print_json(kernels_json(bench, stolen.share()));
    return {};
  }
  print_table(bench);
  if (!stolen.sentence().empty()) std::printf("\n%s\n", stolen.sentence().c_str());
  return {};
}

}  // namespace

void add_bench_kernels(Command bench, Action& action) {
  auto sub = bench.add_subcommand(
      "kernels", "Matmuls by type and shape, attention, norms, softmax, conversions, beside what this machine can do");
  const auto command = std::make_shared<KernelsCommand>();
  sub.add_option("--only", command->only, "Groups: matmul, attention, rows, conversion [all]")
      .comma_separated()
      .one_of({kKernelGroups.begin(), kKernelGroups.end()});
  sub.add_option("--types", command->types, "Types of weights and conversions [all]").comma_separated();
  sub.add_option("--shapes", command->shapes, "Matrices as INxOUT [the four of a layer of llama-1.1b]")
      .comma_separated();
  sub.add_option("--rows", command->rows, "Rows of activations at once; 1 is a decode step")
      .comma_separated()
      .in_range(1, 4096)
      .show_default();
  sub.add_option("--keys", command->keys, "Keys that attention reads")
      .comma_separated()
      .in_range(1, 1 << 17)
      .show_default();
  sub.add_option("--isas", command->isas, "Instruction sets, in turns [the one in use; BUTTERFLY_ISA chooses it]")
      .comma_separated();
  sub.add_option("--threads", command->threads, "Numbers of threads, in turns [1 and all]").comma_separated();
  sub.add_option("--mib", command->mib, "MiB that a case reads at least: more than caches hold")
      .in_range(1, 1 << 12)
      .show_default();
  sub.add_option("--rounds", command->rounds, "Measured rounds, after one that is not")
      .in_range(1, 1000)
      .show_default();
  sub.footer(
      "The roof of an operation is what its FLOPs take at the measured peak (of bytes for quantised weights, where the "
      "instruction\nset has one) or its bytes at the measured bandwidth, whichever is longer, as in `butterfly study`. "
      "Weights, operands and\nresults count once a call; what caches serve can exceed 100 %. One thread's times are "
      "its "
      "own CPU time.\n"
      "  butterfly bench kernels --only matmul --types q4_0,q8_0 --isas avx2,avx512\n"
      "  butterfly bench kernels --only attention --keys 65536\n"
      "  butterfly bench kernels --shapes 4096x14336 --rows 1,8,64,512");
  finish_bench(sub, action, command, &run_kernels);
}

}  // namespace butterfly::app
