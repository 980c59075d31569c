// Remedies that can be tried: a cause's remedy as another command line. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "butterfly/study/advice/advice.h"

namespace butterfly::study {

struct Remedy {
  std::string cause{};                                          // its id
  std::string workload{};                                       // whose steps it should make faster; empty: all
  std::vector<std::pair<std::string, std::string>> flags{};     // "--threads", "1"
  std::vector<std::string> environment{};                       // NAME=VALUE
  double speedup = 1.0, speedup_low = 1.0, speedup_high = 1.0;  // as it was predicted
};

/// Those of the advice's causes that a flag or a variable may cure, in the advice's order; none twice.
std::vector<Remedy> remedies(const Study& study, const Advice& advice);

/// The words of a command with the flags set; what they said before is gone.
std::vector<std::string> with_flags(std::vector<std::string> words, const Remedy& remedy);

/// "--threads 1", "MALLOC_ARENA_MAX=2".
std::string describe(const Remedy& remedy);

}  // namespace butterfly::study
