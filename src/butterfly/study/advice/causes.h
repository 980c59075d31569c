// The causes that a study knows, each with the limit from which on it is one. Pure functions.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/study/advice/advice.h"

namespace butterfly::study {

/// Of one kind of step.
std::vector<Cause> compute_causes(const Study& study, const WorkloadStudy& work);
std::vector<Cause> fusion_causes(const Study& study, const WorkloadStudy& work);
std::vector<Cause> communication_causes(const Study& study, const WorkloadStudy& work);

/// Of the whole run.
std::vector<Cause> machine_causes(const Study& study);
std::vector<Cause> memory_causes(const Study& study);

/// The names that `train --fusion` takes.
inline constexpr std::array<std::string_view, 5> kFusions{"qkv", "swiglu", "attention", "cross_entropy", "adamw"};

/// Whether the recorded training has these operations as one, or none of them.
bool fuses(const Study& study, std::string_view what);

/// Rows from which on matmuls reach what they can.
inline constexpr double kManyRows = 1024;

/// A fact of the process that asked; 0: unknown.
int number_fact(const Study& study, const std::string& name);

/// Sequences at once that give the matmuls of training many rows, as far as a step has them; 0: it has no more.
int larger_micro_batch(const Study& study);

/// 0 where no operation has that name.
double share_of(const WorkloadStudy& work, std::string_view operation);

/// The track whose phases stand for the run's: the busiest one that is no scheduler.
const TrackTime& main_track(const WorkloadStudy& work);

}  // namespace butterfly::study
