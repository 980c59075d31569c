#include "butterfly/kernel/rates/matmul_choice.h"

#include <fmt/format.h>
#include <time.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <sstream>
#include <utility>

#include "butterfly/base/clock.h"
#include "butterfly/kernel/inference/linear.h"
#include "butterfly/kernel/rates/owned_activations.h"
#include "butterfly/machine/measurement_cache.h"
#include "butterfly/machine/usage/cpu_shortage.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::string_view kChoicesMagic = "butterfly-matmul-choices 3";
constexpr std::int64_t kReduced = 2048;       // a model's dimension, as models go
constexpr std::int64_t kOutputsTried = 1024;  // as many as what is done once for all outputs is usually shared by
constexpr int kTurns = 3;             // each set's best counts; they take turns, so a disturbance meets them all
constexpr double kWorthwhile = 1.05;  // less is noise
constexpr double kHopeless = 1.5;     // times as long as the fastest in the first turn: not tried again
constexpr int kWeightByte = 0x3c;     // every byte of the weights: an ordinary number in each type
constexpr std::array kPrefetches{Prefetch::kTwoSteps, Prefetch::kOneStep};
constexpr std::array kRowsOfClass{1, 8, 128};  // that stand for a class

/// Types in which weights are packed differently, by the first that is packed so.
std::vector<DType> packed_differently() {
  std::vector<DType> types;
  for (const DType type : kAllDTypes) {
    const auto alike = [&](DType other) { return packed_type(other) == packed_type(type); };
    if (type != DType::kI32 && std::ranges::none_of(types, alike)) types.push_back(type);
  }
  return types;
}

/// `isa` and those below it whose kernels are right here; the portable one, which is never the fastest, is left out.
std::vector<Isa> rivals_of(Isa isa) {
  std::vector<Isa> rivals;
  for (const Isa each : supported_isas()) {
    const bool right = each <= isa && kernels_for(each).name == to_string(each);
    if (right && each != Isa::kReference) rivals.push_back(each);
  }
  return rivals;
}

/// Of this thread alone: what else runs here makes no set slower than another.
double seconds_of_matmul(Isa isa, ThreadTeam& team, const LinearJob& job) {
  const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  run_linear(unchecked_kernels(isa), team, std::span(&job, 1));
  return std::max(cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin, 1e-9);
}

/// Each line goes back to memory.
void drop_from_caches([[maybe_unused]] std::span<const unsigned char> bytes) {
#ifdef __x86_64__
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes.size(); at += kLine) _mm_clflush(bytes.data() + at);
  _mm_mfence();
#endif
}

/// Measures on weights of one type after the other.
class Rivalry {
 public:
  explicit Rivalry(Isa isa) : isa_(isa), rivals_(rivals_of(isa)) {}

  void measure(DType type, RowClass rows, std::vector<MatmulChoice>& choices) {
    const auto weights = weights_of(type, kOutputsTried);
    if (!weights) return;  // no memory: the set that was asked for stays
    const OwnedActivations x(unchecked_kernels(isa_), kRowsOfClass[static_cast<std::size_t>(rows)], kReduced);
    std::vector<float> y(static_cast<std::size_t>(x.view.rows * kOutputsTried));
    const LinearJob job{.weights = &*weights, .x = &x.view, .slices = SliceBorders::single(kReduced), .y = y.data()};
    seconds_of_matmul(isa_, team_, job);  // touches everything once
    const auto [winner, gain] = fastest(job);
    if (gain < kWorthwhile) return;
    const auto [again, gain_again] = fastest(job);
    if (again != winner || gain_again < kWorthwhile) return;  // by chance
    choices.push_back({.type = type, .rows = rows, .isa = winner, .gain = std::min(gain, gain_again)});
  }

  /// Of one row, on weights that are in no cache.
  PrefetchChoice measure_prefetch() {
    constexpr std::int64_t kOutputsRead = 12 * kOutputsTried;  // longer than the clock's steps
    const auto weights = weights_of(DType::kQ4_0, kOutputsRead);
    if (!weights) return {};
    const OwnedActivations x(unchecked_kernels(isa_), 1, kReduced);
    std::vector<float> y(static_cast<std::size_t>(kOutputsRead));
    const LinearJob job{.weights = &*weights, .x = &x.view, .slices = SliceBorders::single(kReduced), .y = y.data()};
    const Prefetch before = chosen_prefetch();
    std::array<double, kPrefetches.size()> best;
    best.fill(std::numeric_limits<double>::infinity());
    for (int turn = 0; turn < kTurns; ++turn) {
      for (std::size_t way = 0; way < kPrefetches.size(); ++way) {
        choose_prefetch(kPrefetches[way]);
        drop_from_caches({weights->data(), weights->bytes()});
        best[way] = std::min(best[way], seconds_of_matmul(isa_, team_, job));
      }
    }
    choose_prefetch(before);
    const double gain = best[0] / best[1];
    return gain < kWorthwhile ? PrefetchChoice{} : PrefetchChoice{.prefetch = kPrefetches[1], .gain = gain};
  }

 private:
  Result<PackedMatrix> weights_of(DType type, std::int64_t outputs) {
    const std::size_t bytes = *row_bytes(type, kReduced) * static_cast<std::size_t>(outputs);
    if (source_.size() < bytes) source_.resize(bytes, static_cast<std::byte>(kWeightByte));
    return PackedMatrix::pack(
        {.type = type, .rows = outputs, .cols = kReduced, .bytes = ByteSpan(source_).first(bytes)}, team_);
  }

  /// The fastest, and how many times as fast as the one that was asked for.
  std::pair<Isa, double> fastest(const LinearJob& job) {
    std::array<double, kAllIsas.size()> best;
    best.fill(std::numeric_limits<double>::infinity());
    for (int turn = 0; turn < kTurns; ++turn) {
      const double hopeless = kHopeless * *std::ranges::min_element(best);  // infinite in the first turn
      for (const Isa each : rivals_) {
        double& seconds = best[static_cast<std::size_t>(each)];
        if (turn == 0 || seconds <= hopeless) seconds = std::min(seconds, seconds_of_matmul(each, team_, job));
      }
    }
    const auto least = std::ranges::min_element(best);
    return {kAllIsas[static_cast<std::size_t>(least - best.begin())], best[static_cast<std::size_t>(isa_)] / *least};
  }

  const Isa isa_;
  const std::vector<Isa> rivals_;
  ThreadTeam team_{1};
  std::vector<std::byte> source_;
};

}  // namespace

MachineChoices measure_choices(Isa isa) {
  MachineChoices choices;
  const Isa own = matmul_isa(isa, PackedType::kF32, RowClass::kOne);  // one row's is never chosen
  Rivalry rivalry(own);
  if (own != Isa::kReference) choices.prefetch = rivalry.measure_prefetch();
  if (rivals_of(own).size() < 2) return choices;
  for (const DType type : packed_differently()) {
    for (const RowClass rows : {RowClass::kFew, RowClass::kMany}) rivalry.measure(type, rows, choices.matmuls);
  }
  return choices;
}

MachineChoices remembered_choices(Isa isa) {
  const char* setting = std::getenv("BUTTERFLY_TUNE");
  if (setting != nullptr && std::string_view(setting) == "off") return {};
  std::string key(to_string(isa));
  for (const Isa each : supported_isas()) key += fmt::format(" {}", to_string(each));
  const auto cache = MeasurementCache::open("choices", key);
  if (!cache) return {};
  if (auto choices = parse_choices(cache->load())) return std::move(*choices);
  const auto lock = cache->lock();
  if (auto choices = parse_choices(cache->load())) return std::move(*choices);  // another process was first
  const CpuShortage shortage;
  const bool recording = trace::recording();
  trace::set_recording(false);  // this is no part of the run
  MachineChoices choices = measure_choices(isa);
  trace::set_recording(recording);
  cache->store(serialize(choices), shortage.share());
  return choices;
}

const Kernels& tuned_kernels(Isa isa) {
  static std::array<std::once_flag, kAllIsas.size()> once;
  std::call_once(once[static_cast<std::size_t>(isa)], [isa] {
    const MachineChoices choices = remembered_choices(isa);
    choose_prefetch(choices.prefetch.prefetch);
    for (const MatmulChoice& choice : choices.matmuls) {
      choose_matmul(isa, packed_type(choice.type), choice.rows, choice.isa);
    }
  });
  return kernels_for(isa);
}

std::string_view to_string(Prefetch prefetch) {
  return prefetch == Prefetch::kOneStep ? "one-step" : "two-steps";
}

std::string serialize(const MachineChoices& choices) {
  std::string text = fmt::format("{}\n{} {:.6g}\n{}\n", kChoicesMagic, to_string(choices.prefetch.prefetch),
                                 choices.prefetch.gain, choices.matmuls.size());
  for (const MatmulChoice& choice : choices.matmuls) {
    text += fmt::format("{} {} {} {:.6g}\n", to_string(choice.type), choice.rows == RowClass::kFew ? "few" : "many",
                        to_string(choice.isa), choice.gain);
  }
  return text;
}

std::optional<MachineChoices> parse_choices(const std::string& text) {
  std::istringstream lines(text);
  std::string magic, prefetch;
  std::size_t count = 0;
  MachineChoices choices;
  if (!std::getline(lines, magic) || magic != kChoicesMagic) return std::nullopt;
  if (!(lines >> prefetch >> choices.prefetch.gain >> count) || !std::isfinite(choices.prefetch.gain)) {
    return std::nullopt;
  }
  const auto known_prefetch = std::ranges::find(kPrefetches, prefetch, [](Prefetch p) { return to_string(p); });
  if (known_prefetch == kPrefetches.end()) return std::nullopt;
  choices.prefetch.prefetch = *known_prefetch;
  for (std::size_t i = 0; i < count; ++i) {
    std::string type, rows, isa;
    MatmulChoice choice;
    if (!(lines >> type >> rows >> isa >> choice.gain)) return std::nullopt;
    const auto known_type = parse_dtype(type);
    const auto known_isa = parse_isa(isa);
    if (!known_type || !known_isa || !std::isfinite(choice.gain)) return std::nullopt;
    if (std::ranges::find(supported_isas(), *known_isa) == supported_isas().end()) return std::nullopt;
    if (rows != "few" && rows != "many") return std::nullopt;
    choice.type = *known_type;
    choice.isa = *known_isa;
    choice.rows = rows == "few" ? RowClass::kFew : RowClass::kMany;
    choices.matmuls.push_back(choice);
  }
  return choices;
}

}  // namespace butterfly
