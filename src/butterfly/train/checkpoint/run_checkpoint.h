// A run on disk, complete or not there: a directory for each saved step, made under another name and renamed when every
// byte is on the disk (docs/formats/checkpoint.md). Plain functions, thread-safe on different directories.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/train/checkpoint/checkpoint_files.h"

namespace butterfly {

/// What of a run is not an array.
struct RunState {
  std::int64_t step = 0;          // steps done
  std::int64_t updates = 0;       // of the optimizer: fewer where the guard left steps out
  std::vector<double> guard{};    // OutlierGuard::state()
  std::string fingerprint{};      // of the configuration
  std::int64_t train_tokens = 0;  // of the data, which the fingerprint knows nothing of
  double unigram_entropy = 0.0;
  std::string data_digest{};            // Dataset::digest(); empty in states that were saved before there was one
  std::vector<Parameter> parameters{};  // where each lies in the arrays; frozen and decay are not kept
};

/// An array of a run: "weights", "moment-0", "residual-2".
struct RunArray {
  std::string name{};
  std::span<float> values{};
  std::vector<ParameterRange> ranges{};  // of the values, what this rank holds, ascending; empty: all
};

/// What one rank has of an array.
struct RunPart {
  std::string name{};
  std::span<const float> values{};       // of the ranges, one after the other
  std::vector<ParameterRange> ranges{};  // of the array, ascending
};

/// What is to be saved; borrowed.
struct RunSnapshot {
  const RunState& state;
  const std::string& config_toml;
  std::span<const RunArray> arrays{};
};

struct CheckpointFile {
  std::string name{};
  std::uint64_t bytes = 0;
  std::string sha256{};                  // lower-case hex
  std::vector<ParameterRange> ranges{};  // of the array, what the file has of it, ascending; empty: all
};

/// A complete checkpoint: every file is there and as long as the manifest says; contents are checked when they are
/// read.
struct SavedRun {
  std::string path{};
  RunState state{};
  std::vector<CheckpointFile> files{};

  std::string config_path() const { return path + "/config.toml"; }
  /// Bytes of an array, in one file or in parts; nothing where there is none of this name.
  std::optional<std::uint64_t> array_bytes(const std::string& name) const;
};

/// Writes `directory`/step-NNNNNNNN and returns its path. A run that is killed at any moment leaves the directory with
/// the complete checkpoints that it had, or with one more. Errors: kIo naming the file and the system's reason.
Result<std::string> write_checkpoint(CheckpointFiles& files, const std::string& directory, const RunSnapshot& run);

/// The same where ranks write their parts: first one of them begins and all write into the folder that is returned,
/// each under its number, then one of them completes it with all parts. Errors as above.
Result<std::string> begin_checkpoint(CheckpointFiles& files, const std::string& directory, std::int64_t step);
Result<std::vector<CheckpointFile>> write_parts(CheckpointFiles& files, const std::string& folder, int rank,
                                                std::span<const RunArray> arrays);
Result<std::vector<CheckpointFile>> write_parts(CheckpointFiles& files, const std::string& folder, int rank,
                                                std::span<const RunPart> parts);
Result<std::string> complete_checkpoint(CheckpointFiles& files, const std::string& directory,
                                        const std::string& unfinished, const RunSnapshot& run,
                                        std::vector<CheckpointFile> parts);

/// Removes all complete checkpoints but the `keep` newest, and what interrupted saves left. Errors: kIo.
Status prune_checkpoints(CheckpointFiles& files, const std::string& directory, int keep);

/// Steps of the complete checkpoints below `directory`, ascending; none where there is no such directory.
std::vector<std::int64_t> saved_steps(const std::string& directory);
std::string checkpoint_path(const std::string& directory, std::int64_t step);

/// `path` is a checkpoint, or a directory of them: then the newest. Errors: kNotFound (no checkpoint, a file of it),
/// kBadData naming the file and what is wrong with it.
Result<SavedRun> open_run(const std::string& path);

/// Fills the array, or its ranges, from its file or from the files of its parts, all of which are read and checked.
/// Errors: kNotFound; kBadData naming the file (length, SHA-256) or what no file has; kIo.
Status read_array(const SavedRun& run, const RunArray& array);

/// Manifest and state as texts; nothing in them is trusted. `name` is for messages. Errors: kBadData.
Result<std::vector<CheckpointFile>> parse_manifest(const std::string& text, const std::string& name);
Result<RunState> parse_run_state(const std::string& text, const std::string& name);
std::string to_json(const RunState& state);
std::string manifest_of(std::span<const CheckpointFile> files);
/// A list of files as the manifest has it, and back. Errors: kBadData.
std::string to_json(std::span<const CheckpointFile> files);
Result<std::vector<CheckpointFile>> parse_files(const std::string& text, const std::string& name);

}  // namespace butterfly
