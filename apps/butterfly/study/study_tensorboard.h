// The numbers of a report as TensorBoard's scalars.
#pragma once

#include <string>

#include "study/study.h"

namespace butterfly::app {

/// A new file of events in `directory`: every number of report.json under its path in it ("workloads/train/efficiency/
/// mfu"), at step 0; the seconds of each measured step ("steps/train/step_s"), at its number; memory over time
/// ("timeline/rank 0/resident_bytes"), at its millisecond. Returns the file's path. Errors: kIo.
Result<std::string> write_tensorboard(const std::string& directory, const StudyFolder& read);

}  // namespace butterfly::app
