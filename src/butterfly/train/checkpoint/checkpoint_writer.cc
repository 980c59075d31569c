#include "butterfly/train/checkpoint/checkpoint_writer.h"

#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/held.h"

namespace butterfly {

struct CheckpointWriter::State {
  State(const CheckpointConfig& c, CheckpointFiles& f) : config(c), files(f) {}

  CheckpointConfig config;
  CheckpointFiles& files;

  // The copy: belongs to the thread while it runs.
  RunState run_state;
  std::string config_toml;
  std::vector<AlignedBuffer> buffers;
  std::vector<trace::Held> held;
  std::vector<RunArray> arrays;

  std::thread thread;
  std::atomic<bool> done{false};  // what the thread writes is read after it
  std::optional<SaveOutcome> outcome;

  /// Buffers are made at the first save and used again.
  Status copy(const RunSnapshot& run) {
    run_state = run.state;
    config_toml = run.config_toml;
    arrays.clear();
    buffers.resize(run.arrays.size());
    held.resize(buffers.size());
    for (std::size_t i = 0; i < run.arrays.size(); ++i) {
      const std::span<float> from = run.arrays[i].values;
      if (buffers[i].bytes() != from.size_bytes()) {
        BF_ASSIGN_OR_RETURN(buffers[i], AlignedBuffer::create(from.size_bytes()));
        held[i] = trace::Held(trace::Owner::kBuffers, from.size_bytes());
      }
      std::memcpy(buffers[i].data(), from.data(), from.size_bytes());
      arrays.push_back({run.arrays[i].name, {reinterpret_cast<float*>(buffers[i].data()), from.size()}});
    }
    return {};
  }

  void write(const RunSnapshot& run) {
    Result<std::string> path = write_checkpoint(files, config.directory, run);
    if (path) {
      // Old checkpoints that cannot be removed do no harm to this one.
      (void)prune_checkpoints(files, config.directory, config.keep);
    }
    outcome = SaveOutcome{.step = run.state.step, .path = std::move(path)};
    done.store(true, std::memory_order_release);
  }
};

CheckpointWriter::CheckpointWriter(const CheckpointConfig& config, CheckpointFiles& files)
    : state_(std::make_unique<State>(config, files)) {}

CheckpointWriter::~CheckpointWriter() {
  if (state_->thread.joinable()) state_->thread.join();
}

Status CheckpointWriter::save(const RunSnapshot& run) {
  BF_CHECK(!state_->thread.joinable() && !state_->outcome, "the outcome of a save is asked for before the next one");
  state_->done.store(false, std::memory_order_relaxed);
  if (!state_->config.asynchronous) {
    state_->write(run);
    return {};
  }
  BF_TRY(state_->copy(run));
  const auto write = [state = state_.get()] {
    const trace::Scope scope(trace::Zone::kCheckpoint, {.number = static_cast<std::uint32_t>(state->run_state.step)});
    state->write({.state = state->run_state, .config_toml = state->config_toml, .arrays = state->arrays});
  };
  try {
    state_->thread = std::thread(write);
  } catch (const std::system_error&) {
    write();  // no thread to be had: it takes longer
  }
  return {};
}

std::optional<SaveOutcome> CheckpointWriter::finished() {
  if (!state_->done.load(std::memory_order_acquire)) return std::nullopt;
  return wait();
}

std::optional<SaveOutcome> CheckpointWriter::wait() {
  if (state_->thread.joinable()) state_->thread.join();
  state_->done.store(false, std::memory_order_relaxed);
  return std::exchange(state_->outcome, std::nullopt);
}

std::uint64_t CheckpointWriter::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const AlignedBuffer& buffer : state_->buffers) bytes += buffer.bytes();
  return bytes;
}

}  // namespace butterfly
