#include "butterfly/stage/exchange_calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "butterfly/stage/all_gather.h"

namespace butterfly {
namespace {

constexpr double kBudgetNs = 100e6;  // for the blocks of one size that all run together: several steps of small models
constexpr double kAloneNs = 10e6;    // for those that one member runs alone
constexpr int kColdBlocks = 2;       // not counted: caches, pages and TCP's windows are cold
constexpr int kBlocksMin = 3, kBlocksMax = 64, kAloneMin = 2, kAloneMax = 6;
constexpr double kExchangesOfABlock = 2.0;
constexpr std::size_t kLotBlocks = 6;  // after which members hear which cores the others were on
constexpr int kPartingsMax = 4;
constexpr std::chrono::milliseconds kRest{1};

/// The times of a block.
struct Times {
  double together_ns = 0.0, alone_ns = 0.0;
};

struct Sizes {
  Times many, one;
};

/// The typical value of a skewed lot, whose sum a run takes: the mean without the fastest and the slowest eighth, what
/// happens once is no measure.
double typical(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t cut = values.size() < 3 ? 0 : std::max<std::size_t>(1, values.size() / 8);
  const auto kept = std::span(values).subspan(cut, values.size() - 2 * cut);
  return std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(kept.size());
}

/// What passes by `clock` while one block runs.
Result<double> timed(const ExchangeTrial& trial, int rows, Company company,
                     const std::function<std::uint64_t()>& clock) {
  const std::uint64_t begin_ns = clock();
  BF_TRY(trial.block(rows, company));
  return static_cast<double>(clock() - begin_ns);
}

int rounds_within(double budget_ns, double of_one_ns, int least, int most) {
  return static_cast<int>(
      std::clamp(budget_ns / std::max(1.0, of_one_ns), static_cast<double>(least), static_cast<double>(most)));
}

/// A block as one member saw it.
struct Round {
  double ns = 0.0;
  CorePlace core{};
};
using Lot = std::array<Round, kLotBlocks>;

Result<Round> round_together(const ExchangeTrial& trial, int rows) {
  BF_ASSIGN_OR_RETURN(const double ns, timed(trial, rows, Company::kTogether, trial.clock_ns));
  return Round{.ns = ns, .core = trial.core()};
}

bool shared_a_core(std::span<const Lot> members, std::size_t block) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const CorePlace& core = members[i][block].core;
    for (std::size_t j = 0; core.known() && j < i; ++j) {
      if (members[j][block].core == core) return true;
    }
  }
  return false;
}

/// All wake from a rest at once and compute for a while: the system gives each a core of its own where it has one.
Status part(const ExchangeTrial& trial, int rows) {
  std::this_thread::sleep_for(kRest);
  return trial.block(rows, Company::kAlone);
}

/// The first that counts says to all alike how many there is time for.
Result<double> together_ns(Exchange& exchange, const ExchangeTrial& trial, int rows) {
  for (int i = 0; i < kColdBlocks; ++i) BF_TRY(trial.block(rows, Company::kTogether));
  Lot mine;
  BF_ASSIGN_OR_RETURN(mine[0], round_together(trial, rows));
  BF_ASSIGN_OR_RETURN(const std::vector<double> all, all_gather(exchange, mine[0].ns));
  const auto count =
      static_cast<std::size_t>(rounds_within(kBudgetNs, *std::ranges::max_element(all), kBlocksMin, kBlocksMax));
  std::vector<double> rounds;
  std::vector<double> apart;  // of them
  int partings = 0;
  std::size_t begin = 1;
  while (apart.size() < count && rounds.size() < 2 * count) {
    const std::size_t end = std::min(kLotBlocks, count - apart.size());
    for (std::size_t i = std::exchange(begin, 0); i < end; ++i) {
      BF_ASSIGN_OR_RETURN(mine[i], round_together(trial, rows));
    }
    BF_ASSIGN_OR_RETURN(const std::vector<Lot> lots, all_gather(exchange, mine));
    const std::size_t apart_before = apart.size();
    for (std::size_t i = 0; i < end; ++i) {
      rounds.push_back(mine[i].ns);
      if (!shared_a_core(lots, i)) apart.push_back(mine[i].ns);
    }
    if (2 * (apart.size() - apart_before) < end && partings++ < kPartingsMax) BF_TRY(part(trial, rows));
  }
  return typical(static_cast<int>(apart.size()) >= kBlocksMin ? std::move(apart) : std::move(rounds));
}

/// The first is not counted, others had the caches meanwhile.
Result<double> alone_in_turn_ns(const ExchangeTrial& trial, int rows) {
  BF_TRY(trial.block(rows, Company::kAlone));
  std::vector<double> rounds;
  int count = 1;
  while (static_cast<int>(rounds.size()) < count) {
    BF_ASSIGN_OR_RETURN(rounds.emplace_back(), timed(trial, rows, Company::kAlone, trial.worked_ns));
    count = rounds_within(kAloneNs, rounds.front(), kAloneMin, kAloneMax);
  }
  return typical(std::move(rounds));
}

/// The members take turns; whose turn it is not waits in the exchange.
Result<double> alone_ns(Exchange& exchange, const ExchangeTrial& trial, int rows) {
  double mine_ns = 0.0;
  for (int member = 0; member < exchange.size(); ++member) {
    if (member == exchange.rank()) {
      BF_ASSIGN_OR_RETURN(mine_ns, alone_in_turn_ns(trial, rows));
    }
    BF_TRY(all_gather(exchange, std::uint8_t{1}));
  }
  return mine_ns;
}

struct ExchangeTime {
  double exchange_s = 0.0, block_s = 0.0;
};

ExchangeTime exchange_time(std::span<const Sizes> members, Times Sizes::*size) {
  double together = 0.0, alone = 0.0;
  for (const Sizes& member : members) {
    // They begin and end each round together, but for when they hear of it: the mean.
    together += (member.*size).together_ns / static_cast<double>(members.size());
    alone = std::max(alone, (member.*size).alone_ns);
  }
  return {.exchange_s = std::max(0.0, together - alone) / kExchangesOfABlock * 1e-9, .block_s = together * 1e-9};
}

}  // namespace

Result<ExchangeTimes> measure_exchanges(Exchange& exchange, const ExchangeTrial& trial) {
  BF_ASSIGN_OR_RETURN(const auto ready, all_gather(exchange, static_cast<std::uint8_t>(trial.ready)));
  if (std::ranges::count(ready, 0) > 0) return ExchangeTimes{};
  Sizes mine;
  // In the order of a run, whose prompt comes before its answers. Many rows keep all members busy for long: by then the
  // system gave each a core of its own where it has one, which those that wake each other all the time wait for, and
  // TCP knows the line.
  BF_ASSIGN_OR_RETURN(mine.many.together_ns, together_ns(exchange, trial, trial.many_rows));
  BF_ASSIGN_OR_RETURN(mine.one.together_ns, together_ns(exchange, trial, 1));
  BF_ASSIGN_OR_RETURN(mine.many.alone_ns, alone_ns(exchange, trial, trial.many_rows));
  BF_ASSIGN_OR_RETURN(mine.one.alone_ns, alone_ns(exchange, trial, 1));
  BF_ASSIGN_OR_RETURN(const std::vector<Sizes> members, all_gather(exchange, mine));
  const ExchangeTime one = exchange_time(members, &Sizes::one);
  const ExchangeTime many = exchange_time(members, &Sizes::many);
  return ExchangeTimes{.one_row_s = one.exchange_s,
                       .many_rows = trial.many_rows,
                       .many_rows_s = many.exchange_s,
                       .one_row_block_s = one.block_s,
                       .many_rows_block_s = many.block_s};
}

}  // namespace butterfly
