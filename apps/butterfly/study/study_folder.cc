// A study's folder: recordings of each repeat, how it was made, and the report.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/study/analysis/analysis.h"
#include "butterfly/study/output/form.h"
#include "butterfly/study/output/report_files.h"
#include "butterfly/study/output/report_json.h"
#include "study/study.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kAboutBytesMax = 1 << 20;

/// What cannot be read of it is left at its default: the recordings are what counts.
StudyAbout read_about(const std::string& folder) {
  StudyAbout about;
  const auto text = read_file(folder + "/study.json", kAboutBytesMax);
  if (!text) return about;
  const nlohmann::json json = parse_json(*text);
  if (!json.is_object()) return about;
  const auto number = [&json](const char* key, int otherwise) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return otherwise;
    return static_cast<int>(std::clamp<std::int64_t>(found->get<std::int64_t>(), 0, 1 << 30));
  };
  if (json.contains("command") && json["command"].is_string()) about.command = json["command"].get<std::string>();
  about.exit_code = number("exit_code", 0);
  about.warmup = number("warmup", about.warmup);
  about.measure = std::max(1, number("measure", about.measure));
  return about;
}

/// The recordings' folder, or those of the repeats in it, or the folder itself.
std::vector<std::string> recording_folders(const std::string& folder) {
  std::error_code ignored;
  const std::string recordings = folder + "/recordings";
  if (!std::filesystem::is_directory(recordings, ignored)) return {folder};
  std::vector<std::string> repeats;
  for (int n = 1; std::filesystem::is_directory(fmt::format("{}/{}", recordings, n), ignored); ++n) {
    repeats.push_back(fmt::format("{}/{}", recordings, n));
  }
  if (repeats.empty()) repeats.push_back(recordings);
  return repeats;
}

}  // namespace

Status write_about(const std::string& folder, const StudyAbout& about) {
  const nlohmann::ordered_json json{
      {"command", about.command}, {"exit_code", about.exit_code}, {"warmup", about.warmup}, {"measure", about.measure}};
  const std::string path = folder + "/study.json";
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << dump_json(json, {.indent = 2}) << "\n";
  file.close();
  if (!file) return make_error(ErrorCode::kIo, "{}: cannot be written", path);
  return {};
}

Result<StudyFolder> read_study(const std::string& folder, int warmup, int measure, const LinkSpeed& links) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return make_error(ErrorCode::kNotFound, "{}: is no folder", folder);
  }
  StudyFolder read{.about = read_about(folder), .repeats = {}, .result = {}};
  if (warmup >= 0) read.about.warmup = warmup;
  if (measure > 0) read.about.measure = measure;
  for (const std::string& recordings : recording_folders(folder)) {
    BF_ASSIGN_OR_RETURN(study::RecordedRun run, study::read_run(recordings));
    read.repeats.push_back(std::move(run));
  }
  BF_ASSIGN_OR_RETURN(read.result,
                      study::analyse(read.repeats, {.warmup = read.about.warmup, .measure = read.about.measure}));
  add_estimates(read.repeats.front(), links, read.result);
  read.result.command = read.about.command;
  if (read.about.exit_code != 0) {
    read.result.notes.push_back(fmt::format("the command ended with status {}", read.about.exit_code));
  }
  return read;
}

Result<std::string> make_study_report(const std::string& folder, const StudyFolder& read, bool json) {
  const study::Advice advice = study::advise(read.result);
  const study::Report report = study::make_report(read.result, advice);
  BF_TRY(study::write_report(folder, report, read.result, advice, read.repeats.back()));
  return json ? study::report_json(read.result, advice) : study::terminal_text(report);
}

}  // namespace butterfly::app
