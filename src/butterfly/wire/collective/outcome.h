// Members who each did something alone agree on how it went. Plain function.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Called by all members at once. Well where it went well everywhere; else every member gets the same error: what went
/// wrong first, since others may only have noticed that a member was gone. It names the member, unless it is the first.
/// Errors besides: those of the collectives.
Status agree_on_outcome(Collectives& members, const Status& mine);

}  // namespace butterfly
