// The commands below `butterfly study`.
#pragma once

#include <string>
#include <vector>

#include "butterfly/study/advice/advice.h"
#include "butterfly/study/output/document.h"
#include "butterfly/study/read/recorded_run.h"
#include "commands.h"
#include "study/study_estimates.h"

namespace butterfly::app {

void add_study_run(Command study, Action& action);
void add_study_report(Command study, Action& action);
void add_study_compare(Command study, Action& action);
void add_study_watch(Command study, Action& action);
void add_study_try(Command study, Action& action);
void add_study_scale(Command study, Action& action);

/// How a study was made, DIR/study.json.
struct StudyAbout {
  std::string command;
  int exit_code = 0;
  int warmup = 10, measure = 50;
};
Status write_about(const std::string& folder, const StudyAbout& about);

struct StudyFolder {
  StudyAbout about;
  std::vector<study::RecordedRun> repeats;
  study::Study result;
};

/// What was said on the command line goes before what the folder says; below 0: it was not said.
Result<StudyFolder> read_study(const std::string& folder, int warmup, int measure, const LinkSpeed& links = {});

/// Writes every file of the folder; its text, or JSON, is what stdout gets.
Result<std::string> make_study_report(const std::string& folder, const StudyFolder& read, bool json);

}  // namespace butterfly::app
