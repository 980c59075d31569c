// What drives a pipeline in the tests of this folder.
#pragma once

#include <optional>
#include <utility>

#include "butterfly/infer/deployment/pipeline.h"
#include "butterfly/infer/scheduler/schedule.h"

namespace butterfly {

/// Submits every step that is ready, and waits for one. Errors: those of the schedule and of the pipeline.
inline Result<Step> completed_step(Pipeline& pipeline, Schedule& schedule) {
  while (true) {
    BF_ASSIGN_OR_RETURN(std::optional<Step> step, schedule.next_step());
    if (!step) break;
    BF_TRY(pipeline.submit(std::move(*step)));
  }
  BF_ASSIGN_OR_RETURN(Step step, pipeline.next());
  schedule.completed(step);
  return step;
}

}  // namespace butterfly
