#include "study/study_child.h"

#include <filesystem>

#include "butterfly/machine/usage/recorded_process.h"

namespace butterfly::app {

Result<int> run_recorded(const ChildRun& run) {
  ChildCommand command{.words = run.words, .environment = run.environment, .output = run.output};
  command.environment.push_back(
      fmt::format("{}={}", kRecordFolder, std::filesystem::absolute(run.recordings).string()));
  BF_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::start(command));
  return child.wait();
}

/// Recordings of an earlier study in the same folder would be taken for this one's.
Status make_empty(const std::string& folder) {
  std::error_code failed;
  if (std::filesystem::exists(folder, failed)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, failed)) {
      if (entry.path().extension() == ".bftrace") std::filesystem::remove(entry.path(), failed);
    }
    // Folders of repeats, which are empty now; what is not ours stays.
    for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
      std::error_code kept;
      if (entry.is_directory(kept) && std::filesystem::is_empty(entry.path(), kept)) {
        std::filesystem::remove(entry.path(), kept);
      }
    }
  }
  std::filesystem::create_directories(folder, failed);
  if (failed) return make_error(ErrorCode::kIo, "{}: {}", folder, failed.message());
  return {};
}

std::string missing_command(std::vector<std::string>& words) {
  if (!words.empty() && std::filesystem::path(words.front()).filename() == "butterfly") words.erase(words.begin());
  if (words.empty()) return "A command after -- (such as: -- generate -m MODEL -p TEXT)";
  if (words.front() == "study") return "A command after -- that is no study";
  return {};
}

}  // namespace butterfly::app
