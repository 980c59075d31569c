// Where BUTTERFLY_RECORD names a folder, this process is recorded from here
// to the end, and the recording written there. `butterfly study run` sets it for the command that it studies.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/machine/usage/recorder.h"

namespace butterfly {

inline constexpr const char* kRecordFolder = "BUTTERFLY_RECORD";

/// The folder; empty where nobody asked.
std::string record_folder();

/// Adds the facts "role", "pid", "host" and "boot_id" of this process where there are none.
void add_process_facts(trace::Recording& recording);

/// Writes FOLDER/ROLE-PID.bftrace, with those facts, or FOLDER/NAME.bftrace. Errors: kIo naming the file.
Status write_recording(const std::string& folder, trace::Recording recording);
Status write_recording(const std::string& folder, const std::string& name, const trace::Recording& recording);

/// What identifies the running machine: processes with the same one share a clock. Empty: unknown.
std::string boot_id();

class RecordedProcess {
 public:
  /// Does nothing where nobody asked. `role`: the subcommand, "rank".
  explicit RecordedProcess(const std::string& role);
  /// Writes the recording; an error goes to standard error.
  ~RecordedProcess();
  RecordedProcess(const RecordedProcess&) = delete;
  RecordedProcess& operator=(const RecordedProcess&) = delete;

 private:
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace butterfly
