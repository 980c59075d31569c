// A few numbers that all ranks come to know: losses, counts, parts of a norm.
#pragma once

#include <span>

#include "butterfly/base/result.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// The sum over all ranks of numbers of which each is zero but on one rank, or a count, so no order of addition shows.
/// Nothing to do for null. Errors: those of the collectives.
Status share_numbers(Collectives* collectives, std::span<double> numbers);

}  // namespace butterfly
