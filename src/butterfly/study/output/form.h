// What a report says, in which order. Pure functions.
#pragma once

#include "butterfly/study/advice/advice.h"
#include "butterfly/study/output/document.h"

namespace butterfly::study {

Report make_report(const Study& study, const Advice& advice);

}  // namespace butterfly::study
