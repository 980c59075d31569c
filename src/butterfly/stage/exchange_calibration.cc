#include "butterfly/stage/exchange_calibration.h"

#include <algorithm>
#include <numeric>

#include "butterfly/stage/tell_all.h"

namespace butterfly {
namespace {

constexpr double kBudgetNs = 40e6;  // for either size
constexpr double kExchangesOfABlock = 2.0;

struct Times {
  double passed_ns = 0.0, worked_ns = 0.0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Result<Times> timed(const ExchangeTrial& trial, const std::function<Status()>& work) {
  const std::uint64_t begin_ns = trial.clock_ns(), worked_ns = trial.worked_ns();
  BF_TRY(work());
  return Times{.passed_ns = static_cast<double>(trial.clock_ns() - begin_ns),
               .worked_ns = static_cast<double>(trial.worked_ns() - worked_ns)};
}

/// Medians of every member. The first time is not counted: caches, pages and windows are cold. The second says to all
/// alike how many more there is time for.
Result<std::vector<Times>> medians(Exchange& exchange, const ExchangeTrial& trial, const std::function<Status()>& work,
                                   int rounds_max) {
  constexpr int kRoundsMin = 3;
  BF_TRY(work());
  BF_ASSIGN_OR_RETURN(const Times once, timed(trial, work));
  BF_ASSIGN_OR_RETURN(const std::vector<double> all, tell_all(exchange, once.passed_ns));
  const double slowest = std::max(1.0, *std::ranges::max_element(all));
  const int rounds = static_cast<int>(std::clamp<double>(kBudgetNs / slowest, kRoundsMin, rounds_max));
  std::vector<double> passed, worked;
  for (int i = 0; i < rounds; ++i) {
    BF_ASSIGN_OR_RETURN(const Times times, timed(trial, work));
    passed.push_back(times.passed_ns);
    worked.push_back(times.worked_ns);
  }
  return tell_all(exchange, Times{.passed_ns = median(std::move(passed)), .worked_ns = median(std::move(worked))});
}

/// Members begin and end each round together, but for when they hear of it: the mean of what passed.
double mean_passed(const std::vector<Times>& members) {
  const auto add = [](double sum, const Times& member) { return sum + member.passed_ns; };
  return std::accumulate(members.begin(), members.end(), 0.0, add) / static_cast<double>(members.size());
}

double most_worked(const std::vector<Times>& members) {
  return std::ranges::max(members, {}, &Times::worked_ns).worked_ns;
}

}  // namespace

Result<ExchangeTimes> measure_exchanges(Exchange& exchange, const ExchangeTrial& trial) {
  constexpr int kBlocksMax = 24, kManyMax = 8;
  BF_ASSIGN_OR_RETURN(const auto ready, tell_all(exchange, static_cast<std::uint8_t>(trial.ready)));
  if (std::ranges::count(ready, 0) > 0) return ExchangeTimes{};
  BF_ASSIGN_OR_RETURN(const auto blocks, medians(exchange, trial, trial.one_row, kBlocksMax));
  BF_ASSIGN_OR_RETURN(const auto many, medians(exchange, trial, trial.many, kManyMax));
  const double one_row_ns = (mean_passed(blocks) - most_worked(blocks)) / kExchangesOfABlock;
  return ExchangeTimes{.one_row_s = std::max(0.0, one_row_ns) * 1e-9,
                       .many_rows = trial.many_rows,
                       .many_rows_s = mean_passed(many) * 1e-9};
}

}  // namespace butterfly
