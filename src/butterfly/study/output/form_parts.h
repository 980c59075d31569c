// The sections of a report. Pure functions.
#pragma once

#include "butterfly/study/advice/advice.h"
#include "butterfly/study/output/document.h"

namespace butterfly::study {

ReportSection work_section(const WorkloadStudy& work);
ReportSection memory_section(const Study& study);
ReportSection machine_section(const Study& study);
ReportSection advice_section(const Study& study, const Advice& advice);

ReportFigure roofline_figure(const WorkloadStudy& work);
ReportFigure phases_figure(const WorkloadStudy& work);
ReportFigure timeline_figure(const WorkloadStudy& work);
ReportFigure memory_figure(const MemoryUse& use);

}  // namespace butterfly::study
