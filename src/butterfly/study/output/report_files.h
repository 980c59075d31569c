// Everything that a study writes into its folder.
#pragma once

#include <string>
#include <vector>

#include "butterfly/study/advice/advice.h"
#include "butterfly/study/output/document.h"
#include "butterfly/study/read/recorded_run.h"

namespace butterfly::study {

/// performance_summary_report.md, report.html, report.json, operators.csv, trace.json, folded.txt and, in
/// flops_analysis, flops_profile.json and computational_intensity.json. `run` is what the spans are taken from. Errors:
/// kIo naming the file.
Status write_report(const std::string& folder, const Report& report, const Study& study, const Advice& advice,
                    const RecordedRun& run);

}  // namespace butterfly::study
