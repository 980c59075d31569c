// Whether a run did what it says. Every check states what it saw; the first that fails names the run INVALID.
// Fed step by step; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/model/parameters.h"
#include "butterfly/train/dataset.h"
#include "butterfly/train/step.h"

namespace butterfly {

struct AuditVerdict {
  bool valid = false;
  std::vector<std::string> reasons{};  // of an invalid run
  std::vector<std::string> checks{};   // what was looked at and seen, for the report
};

/// "valid" or "INVALID: reason; reason".
std::string to_string(const AuditVerdict& verdict);

}  // namespace butterfly
