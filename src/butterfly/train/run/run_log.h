// What a run leaves for machines while it goes: lines of JSON and TensorBoard's events, either where the configuration
// names a place. Fed through observers, by one thread. A disk that is full ends the log, not the run.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/run/event_file.h"
#include "butterfly/train/run/trainer.h"

namespace butterfly {

class RunLog {
 public:
  /// The first line is the configuration; a resumed run goes on in its old file. Errors: kIo.
  static Result<std::unique_ptr<RunLog>> open(const RunConfig& config);

  void step(const StepReport& report);
  void evaluated(std::int64_t step, double validation_loss);
  void sampled(std::int64_t step, const std::string& text);
  void saved(std::int64_t step, const std::string& path);
  void note(const std::string& message);
  void finished(const TrainResult& result);

  /// The first write that failed. Nothing was written after it.
  const Status& status() const { return status_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  void line(const std::string& json);
  void events(std::int64_t step, const EventFile::Scalars& scalars);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::optional<EventFile> events_;
  Status status_{};
};

/// Everything about a finished run as one JSON object: summary, verdict, weights' hash, steps, validation loss
/// (null where nothing was evaluated).
std::string to_json(const TrainResult& result);

}  // namespace butterfly
