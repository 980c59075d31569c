// butterfly bench weights: the matmuls of a layer with weights of each type, for each instruction set, in turns, beside
// what bounds them: Q4_0 or the float peak for many rows, the memory for one.
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <random>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/inference/linear.h"
#include "butterfly/machine/peak_loops.h"
#include "butterfly/machine/topology.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly::app {
namespace {

struct WeightsCommand {
  std::vector<std::string> types;
  std::vector<std::string> isas;
  std::vector<int> threads;
  int mib = 128;
  int rows = 256;
  int rounds = 5;
  bool best = false;
  bool json = false;
};

/// One matrix of a layer as llama-1.1b has them; of a divided one the unit of its slices.
struct LayerMatrix {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t unit;
};
constexpr std::array<LayerMatrix, 4> kLayer{{{2560, 2048, 0}, {2048, 2048, 64}, {11264, 2048, 0}, {2048, 5632, 1}}};

double layer_weights() {
  double count = 0;
  for (const LayerMatrix& one : kLayer) count += static_cast<double>(one.rows * one.cols);
  return count;
}

/// Layers of one type.
struct TypedLayers {
  DType type = DType::kF32;
  std::vector<std::vector<PackedMatrix>> layers{};
  double bytes = 0;  // of all, packed
  double bits() const { return bytes * 8 / (static_cast<double>(layers.size()) * layer_weights()); }
};

/// A few random rows again and again: what they are does not matter to the time.
Result<PackedMatrix> random_matrix(DType type, const LayerMatrix& shape, ThreadTeam& team) {
  constexpr std::int64_t kDistinct = 16;
  const auto cols = static_cast<std::size_t>(shape.cols);
  const std::uint64_t row = *row_bytes(type, cols);
  std::vector<std::byte> bytes(row * static_cast<std::size_t>(shape.rows));
  std::mt19937 engine(17);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(cols);
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const auto to = MutableByteSpan(bytes).subspan(static_cast<std::size_t>(r) * row, row);
    if (r >= kDistinct) {
      std::ranges::copy(ByteSpan(bytes).subspan(static_cast<std::size_t>(r % kDistinct) * row, row), to.begin());
      continue;
    }
    for (float& value : values) value = normal(engine);
    encode_row(type, values, to);
  }
  return PackedMatrix::pack({.type = type, .rows = shape.rows, .cols = shape.cols, .bytes = bytes}, team);
}

Result<TypedLayers> make_layers(DType type, double bytes_least, ThreadTeam& team) {
  TypedLayers made{.type = type};
  while (made.bytes < bytes_least) {
    std::vector<PackedMatrix> layer;
    for (const LayerMatrix& shape : kLayer) {
      BF_ASSIGN_OR_RETURN(PackedMatrix matrix, random_matrix(type, shape, team));
      made.bytes += static_cast<double>(matrix.bytes());
      layer.push_back(std::move(matrix));
    }
    made.layers.push_back(std::move(layer));
  }
  return made;
}

/// Activations of one width, and room for what a matmul makes of them.
struct Inputs {
  Inputs(std::int64_t rows, std::int64_t cols)
      : values(static_cast<std::size_t>(rows * cols)),
        quants(values.size()),
        scales(values.size() / kQuantBlock),
        sums(scales.size()),
        y(static_cast<std::size_t>(rows * kLayer[2].rows)),
        view{.rows = rows,
             .cols = cols,
             .values = values.data(),
             .quants = quants.data(),
             .scales = scales.data(),
             .sums = sums.data()} {
    std::mt19937 engine(18);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(engine);
  }
  Inputs(const Inputs&) = delete;
  std::vector<float> values;
  std::vector<std::int8_t> quants;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;
  std::vector<float> y;
  ActivationRows view;
};

/// Seconds of `work`, which one thread or a team does: of one thread its own time, not that of others on the processor
/// meanwhile.
template <typename Work>
double seconds_of(const ThreadTeam& team, const Work& work) {
  const auto now = [&] {
    timespec time{};
    ::clock_gettime(team.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begin = now();
  work();
  return now() - begin;
}

/// Seconds of all matmuls of these layers, with the quantisation of activations where there is one.
double matmul_seconds(const Kernels& kernels, ThreadTeam& team, std::span<const std::vector<PackedMatrix>> layers,
                      std::map<std::int64_t, std::unique_ptr<Inputs>>& inputs) {
  return seconds_of(team, [&] {
    for (const std::vector<PackedMatrix>& layer : layers) {
      for (std::size_t i = 0; i < layer.size(); ++i) {
        Inputs& x = *inputs.at(kLayer[i].cols);
        if (layer[i].quantised()) {
          team.run([&](int member) {
            const WorkRange mine = split_work(x.view.rows, member, team.size());
            for (long row = mine.begin; row < mine.end; ++row) quantize_activation_row(kernels, x.view, row);
          });
        }
        const SliceBorders slices = kLayer[i].unit > 0 ? SliceBorders::canonical(kLayer[i].cols, kLayer[i].unit)
                                                       : SliceBorders::single(kLayer[i].cols);
        const LinearJob job{.weights = &layer[i], .x = &x.view, .slices = slices, .y = x.y.data()};
        run_linear(kernels, team, std::span(&job, 1));
      }
    }
  });
}

/// The most that the team does of what bounds a matmul.
struct Roof {
  double memory_gb_per_s = 0;
  double fp32_gflops = 0;
};

const PeakLoops& peak_loops(Isa isa) {
#ifdef __x86_64__
  if (isa == Isa::kAvx2) return peak_loops_avx2();
  if (isa == Isa::kAvx512) return peak_loops_avx512();
#endif
  (void)isa;
  return peak_loops_reference();
}

Roof measure_roof(const PeakLoops& loops, ThreadTeam& team, const AlignedBuffer& memory) {
  constexpr long kIterations = 1 << 18;
  constexpr std::size_t kGranule = 512;
  std::atomic<std::uint64_t> sink{0};
  const long granules = static_cast<long>(memory.bytes() / kGranule);
  const auto read = [&](int member) {
    const WorkRange mine = split_work(granules, member, team.size());
    sink += loops.read(memory.data() + static_cast<std::size_t>(mine.begin) * kGranule,
                       static_cast<std::size_t>(mine.end - mine.begin) * kGranule);
  };
  const auto multiply = [&](int) { sink += loops.multiply_add(kIterations, 0.25f) > 0.0f ? 1 : 0; };
  const auto best = [&](const auto& work) {
    double seconds = 1e30;
    for (int i = 0; i < 3; ++i) seconds = std::min(seconds, seconds_of(team, [&] { team.run(work); }));
    return seconds;
  };
  return {.memory_gb_per_s = static_cast<double>(granules) * kGranule / best(read) * 1e-9,
          .fp32_gflops = loops.flops_per_iteration * kIterations * team.size() / best(multiply) * 1e-9};
}

/// What was measured of one type in every round.
struct TypeRates {
  DType type = DType::kF32;
  double bits = 0;
  std::vector<double> prefill_gflops{}, prefill_ratio{}, decode_gb_per_s{}, decode_ratio{};
};

/// Of one instruction set and number of threads.
struct Table {
  Isa isa = Isa::kReference;
  int threads = 1;
  std::vector<double> memory_gb_per_s{}, fp32_gflops{};  // of every round
  std::vector<TypeRates> types{};
};

class Bench {
 public:
  explicit Bench(const WeightsCommand& command) : command_(command) {
    for (const LayerMatrix& one : kLayer) {
      many_.try_emplace(one.cols, std::make_unique<Inputs>(command.rows, one.cols));
      one_.try_emplace(one.cols, std::make_unique<Inputs>(1, one.cols));
    }
  }

  Status prepare(const std::vector<DType>& types, const std::vector<Isa>& isas, const std::vector<int>& threads) {
    ThreadTeam team(usable_threads());
    BF_ASSIGN_OR_RETURN(memory_, AlignedBuffer::create(std::uint64_t{128} << 20));
    std::ranges::fill(MutableByteSpan(memory_.data(), memory_.bytes()), std::byte{1});
    for (const DType type : types) {
      std::fprintf(stderr, "packing %s\n", std::string(to_string(type)).c_str());
      BF_ASSIGN_OR_RETURN(TypedLayers layers, make_layers(type, std::ldexp(command_.mib, 20), team));
      layers_.push_back(std::move(layers));
    }
    for (const int count : threads) {
      for (const Isa isa : isas) {
        Table table{.isa = isa, .threads = count};
        for (const TypedLayers& one : layers_) table.types.push_back({.type = one.type, .bits = one.bits()});
        tables_.push_back(std::move(table));
      }
    }
    return {};
  }

  /// Every type of every table once. The first is not counted.
  Status round(bool counted) {
    for (Table& table : tables_) {
      ThreadTeam team(table.threads);
      const Roof roof = measure_roof(peak_loops(table.isa), team, memory_);
      std::vector<std::pair<double, double>> rates;
      for (const TypedLayers& layers : layers_) {
        rates.push_back(measure(kernels_for(table.isa), team, layers));
        if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
      }
      if (counted) add(table, roof, rates);
    }
    return {};
  }

  const std::vector<Table>& tables() const { return tables_; }

 private:
  /// GFLOP/s of many rows, GB/s of weights with one. The shorter of two, as others may have the processor for a moment.
  std::pair<double, double> measure(const Kernels& kernels, ThreadTeam& team, const TypedLayers& layers) {
    const auto best = [&](std::span<const std::vector<PackedMatrix>> some, auto& inputs) {
      return std::min(matmul_seconds(kernels, team, some, inputs), matmul_seconds(kernels, team, some, inputs));
    };
    const double prefill_s = best(std::span(layers.layers).first(1), many_);
    const double decode_s = best(layers.layers, one_);
    return {2 * layer_weights() * command_.rows / prefill_s * 1e-9, layers.bytes / decode_s * 1e-9};
  }

  void add(Table& table, const Roof& roof, const std::vector<std::pair<double, double>>& rates) const {
    table.memory_gb_per_s.push_back(roof.memory_gb_per_s);
    table.fp32_gflops.push_back(roof.fp32_gflops);
    double q4_0 = 0;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      if (layers_[i].type == DType::kQ4_0) q4_0 = rates[i].first;
    }
    for (std::size_t i = 0; i < rates.size(); ++i) {
      TypeRates& type = table.types[i];
      const bool quantised = block_elements(type.type) > 1;
      const double bound = quantised ? q4_0 : roof.fp32_gflops;
      type.prefill_gflops.push_back(rates[i].first);
      type.prefill_ratio.push_back(bound > 0 ? rates[i].first / bound : 0);
      type.decode_gb_per_s.push_back(rates[i].second);
      type.decode_ratio.push_back(rates[i].second / roof.memory_gb_per_s);
    }
  }

  const WeightsCommand& command_;
  std::map<std::int64_t, std::unique_ptr<Inputs>> many_, one_;  // by columns
  AlignedBuffer memory_;                                        // to read
  std::vector<TypedLayers> layers_;
  std::vector<Table> tables_;
};

/// The best of the rounds: of ratios what the best of both give.
double best(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

/// Numbers of a row as they are printed.
struct PrintedRates {
  double prefill_gflops = 0, prefill_ratio = 0, decode_gb_per_s = 0, decode_ratio = 0;
};

PrintedRates printed(const Table& table, const TypeRates& type, bool of_best) {
  if (!of_best) {
    return {median(type.prefill_gflops), median(type.prefill_ratio), median(type.decode_gb_per_s),
            median(type.decode_ratio)};
  }
  double bound = best(table.fp32_gflops);
  if (block_elements(type.type) > 1) {
    const auto q4_0 = std::ranges::find(table.types, DType::kQ4_0, &TypeRates::type);
    bound = q4_0 != table.types.end() ? best(q4_0->prefill_gflops) : HUGE_VAL;
  }
  const double prefill = best(type.prefill_gflops);
  const double decode = best(type.decode_gb_per_s);
  return {prefill, prefill / bound, decode, decode / best(table.memory_gb_per_s)};
}

void print(const Table& table, bool of_best) {
  const auto pick = [&](const std::vector<double>& values) { return of_best ? best(values) : median(values); };
  std::printf("\n%s, %d thread%s: fp32 %.0f GFLOP/s, memory %.1f GB/s\n\n", std::string(to_string(table.isa)).c_str(),
              table.threads, table.threads == 1 ? "" : "s", pick(table.fp32_gflops), pick(table.memory_gb_per_s));
  std::printf("| type | packed bits | prefill GFLOP/s | of Q4_0 or fp32 | decode GB/s | of memory |\n");
  std::printf("|---|--:|--:|--:|--:|--:|\n");
  for (const TypeRates& type : table.types) {
    const PrintedRates rates = printed(table, type, of_best);
    std::printf("| %s | %.2f | %.0f | %.2f | %.1f | %.2f |\n", std::string(to_string(type.type)).c_str(), type.bits,
                rates.prefill_gflops, rates.prefill_ratio, rates.decode_gb_per_s, rates.decode_ratio);
  }
}

void print_all_json(const std::vector<Table>& tables) {
  nlohmann::ordered_json j;
  for (const Table& table : tables) {
    nlohmann::ordered_json one{{"isa", to_string(table.isa)},
                               {"threads", table.threads},
                               {"memory_gb_per_s", table.memory_gb_per_s},
                               {"fp32_gflops", table.fp32_gflops}};
    for (const TypeRates& type : table.types) {
      one["types"].push_back({{"type", to_string(type.type)},
                              {"packed_bits", type.bits},
                              {"prefill_gflops", type.prefill_gflops},
                              {"prefill_ratio", type.prefill_ratio},
                              {"decode_gb_per_s", type.decode_gb_per_s},
                              {"decode_ratio", type.decode_ratio}});
    }
    j.push_back(std::move(one));
  }
  print_json(j);
}

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
  types.push_back(DType::kQ4_0);  // what the others are compared with
  for (const DType type : kAllDTypes) {
    if (can_encode(type) && type != DType::kQ4_0) types.push_back(type);
  }
  return types;
}

Result<std::vector<Isa>> chosen_isas(const std::vector<std::string>& names) {
  std::vector<Isa> isas;
  std::string known;
  for (const Isa isa : supported_isas()) {
    const bool wanted = names.empty() ? isa != Isa::kReference : std::ranges::count(names, to_string(isa)) > 0;
    if (wanted) isas.push_back(isa);
    known += (known.empty() ? "" : ", ") + std::string(to_string(isa));
  }
  if (isas.empty() || (!names.empty() && isas.size() != names.size())) {
    return make_error(ErrorCode::kInvalidArgument, "--isas names {} sets, of which {} are here: {}", names.size(),
                      isas.size(), known);
  }
  return isas;
}

Status run(const WeightsCommand& command) {
  BF_ASSIGN_OR_RETURN(const std::vector<DType> types, chosen_types(command.types));
  BF_ASSIGN_OR_RETURN(const std::vector<Isa> isas, chosen_isas(command.isas));
  std::vector<int> threads = command.threads;
  for (int t = 1; command.threads.empty() && t <= usable_threads(); t *= 2) threads.push_back(t);
  if (std::ranges::any_of(threads, [](int count) { return count < 1 || count > 1024; })) {
    return make_error(ErrorCode::kInvalidArgument, "--threads counts from 1 to 1024");
  }
  Bench bench(command);
  BF_TRY(bench.prepare(types, isas, threads));
  for (int round = 0; round <= command.rounds; ++round) {
    std::fprintf(stderr, "round %d of %d%s\n", round, command.rounds, round == 0 ? ", which is not counted" : "");
    BF_TRY(bench.round(round > 0));
  }
  if (command.json) {
    print_all_json(bench.tables());
    return {};
  }
  for (const Table& table : bench.tables()) print(table, command.best);
  return {};
}

}  // namespace

void add_bench_weights(Command bench, Action& action) {
  auto sub = bench.add_subcommand("weights",
                                  "Matmuls of a layer with weights of each type, by each instruction set, in turns");
  const auto command = std::make_shared<WeightsCommand>();
  sub.add_option("--types", command->types, "Types of weights [all]").comma_separated();
  sub.add_option("--isas", command->isas, "Instruction sets [all that this machine has]").comma_separated();
  sub.add_option("--threads", command->threads, "Numbers of threads [1, 2, 4, ...]").comma_separated();
  sub.add_option("--mib", command->mib, "MiB of weights of each type for one row: more than caches hold")
      .in_range(1, 1 << 16)
      .show_default();
  sub.add_option("--rows", command->rows, "Rows at once, of prefill").in_range(2, 1 << 16).show_default();
  sub.add_option("--rounds", command->rounds, "Measured rounds").in_range(1, 1000).show_default();
  sub.add_flag("--best", command->best, "The best of the rounds instead of medians: where others use the machine, too");
  sub.footer(
      "Matrices of one layer of llama-1.1b, made up. Prefill is compared with Q4_0 of the same round, of float types "
      "with the fp32 peak; decode with what as many threads read from memory. Medians of the rounds, as a table. One "
      "thread's times are its own CPU time.");
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
