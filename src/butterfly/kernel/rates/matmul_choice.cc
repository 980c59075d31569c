#include "butterfly/kernel/rates/matmul_choice.h"

#include <fmt/format.h>
#include <time.h>

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

constexpr std::string_view kChoicesMagic = "butterfly-matmul-choices 2";
constexpr std::int64_t kReduced = 2048;       // a model's dimension, as models go
constexpr std::int64_t kOutputsTried = 1024;  // as many as what is done once for all outputs is usually shared by
constexpr int kTurns = 3;             // each set's best counts; they take turns, so a disturbance meets them all
constexpr double kWorthwhile = 1.05;  // less is noise
constexpr double kHopeless = 1.5;     // times as long as the fastest in the first turn: not tried again
constexpr int kWeightByte = 0x3c;     // every byte of the weights: an ordinary number in each type
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

/// Measures on weights of one type after the other.
class Rivalry {
 public:
  explicit Rivalry(Isa isa) : isa_(isa), rivals_(rivals_of(isa)) {}

  void measure(DType type, RowClass rows, std::vector<MatmulChoice>& choices) {
    const std::size_t bytes = *row_bytes(type, kReduced) * kOutputsTried;
    if (source_.size() < bytes) source_.resize(bytes, static_cast<std::byte>(kWeightByte));
    const auto weights = PackedMatrix::pack(
        {.type = type, .rows = kOutputsTried, .cols = kReduced, .bytes = ByteSpan(source_).first(bytes)}, team_);
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

 private:
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

std::vector<MatmulChoice> measure_choices(Isa isa) {
  std::vector<MatmulChoice> choices;
  const Isa own = matmul_isa(isa, PackedType::kF32, RowClass::kOne);  // one row's is never chosen
  if (rivals_of(own).size() < 2) return choices;
  Rivalry rivalry(own);
  for (const DType type : packed_differently()) {
    for (const RowClass rows : {RowClass::kFew, RowClass::kMany}) rivalry.measure(type, rows, choices);
  }
  return choices;
}

std::vector<MatmulChoice> remembered_choices(Isa isa) {
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
  auto choices = measure_choices(isa);
  trace::set_recording(recording);
  cache->store(serialize(choices), shortage.share());
  return choices;
}

const Kernels& tuned_kernels(Isa isa) {
  static std::array<std::once_flag, kAllIsas.size()> once;
  std::call_once(once[static_cast<std::size_t>(isa)], [isa] {
    for (const MatmulChoice& choice : remembered_choices(isa)) {
      choose_matmul(isa, packed_type(choice.type), choice.rows, choice.isa);
    }
  });
  return kernels_for(isa);
}

std::string serialize(const std::vector<MatmulChoice>& choices) {
  std::string text = fmt::format("{}\n{}\n", kChoicesMagic, choices.size());
  for (const MatmulChoice& choice : choices) {
    text += fmt::format("{} {} {} {:.6g}\n", to_string(choice.type), choice.rows == RowClass::kFew ? "few" : "many",
                        to_string(choice.isa), choice.gain);
  }
  return text;
}

std::optional<std::vector<MatmulChoice>> parse_choices(const std::string& text) {
  std::istringstream lines(text);
  std::string magic;
  std::size_t count = 0;
  if (!std::getline(lines, magic) || magic != kChoicesMagic || !(lines >> count)) return std::nullopt;
  std::vector<MatmulChoice> choices;
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
    choices.push_back(choice);
  }
  return choices;
}

}  // namespace butterfly
