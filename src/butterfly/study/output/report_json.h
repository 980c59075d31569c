// A study as JSON. Pure functions.
#pragma once

#include <string>

#include "butterfly/study/advice/advice.h"

namespace butterfly::study {

/// docs/formats/study.schema.json.
std::string report_json(const Study& study, const Advice& advice);

/// "efficiency_metrics", "performance_metrics" and "flops_analysis" of the kind of step that takes most time.
std::string flops_profile_json(const Study& study);
/// "arithmetic_intensity_flops_per_byte", "memory_bandwidth_used_gb_per_sec" and so on, of the same.
std::string computational_intensity_json(const Study& study);

/// One row for each operation of each kind of step.
std::string operators_csv(const Study& study);

}  // namespace butterfly::study
