#include "butterfly/study/output/report_files.h"

#include <filesystem>
#include <fstream>

#include "butterfly/study/output/report_json.h"
#include "butterfly/study/output/span_files.h"

namespace butterfly::study {
namespace {

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return make_error(ErrorCode::kIo, "{}: {} bytes cannot be written", path, text.size());
  return {};
}

}  // namespace

Status write_report(const std::string& folder, const Report& report, const Study& study, const Advice& advice,
                    const RecordedRun& run) {
  std::error_code failed;
  const std::string flops = folder + "/flops_analysis";
  std::filesystem::create_directories(flops, failed);
  if (failed) return make_error(ErrorCode::kIo, "{}: {}", flops, failed.message());
  BF_TRY(write_text(folder + "/performance_summary_report.md", markdown_text(report)));
  BF_TRY(write_text(folder + "/report.html", html_page(report)));
  BF_TRY(write_text(folder + "/report.json", report_json(study, advice)));
  BF_TRY(write_text(folder + "/operators.csv", operators_csv(study)));
  BF_TRY(write_text(folder + "/trace.json", trace_events_json(run)));
  BF_TRY(write_text(folder + "/folded.txt", folded_stacks(run)));
  BF_TRY(write_text(flops + "/flops_profile.json", flops_profile_json(study)));
  return write_text(flops + "/computational_intensity.json", computational_intensity_json(study));
}

}  // namespace butterfly::study
