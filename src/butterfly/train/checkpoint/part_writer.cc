#include "butterfly/train/checkpoint/part_writer.h"

#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/held.h"

namespace butterfly {

struct PartWriter::State {
  explicit State(CheckpointFiles& f) : files(f) {}

  CheckpointFiles& files;

  // The copy: belongs to the thread while it runs.
  std::string folder;
  int rank = 0;
  std::vector<AlignedBuffer> buffers;
  std::vector<trace::Held> held;
  std::vector<RunPart> parts;
  Result<std::vector<CheckpointFile>> written;

  std::thread thread;
  std::atomic<bool> done{true};  // what the thread writes is read after it

  /// Buffers are made at the first save, and again where ranges have changed.
  Status copy(std::span<const RunArray> arrays) {
    parts.clear();
    buffers.resize(arrays.size());
    held.resize(buffers.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      std::uint64_t bytes = 0;
      for (const ParameterRange& range : arrays[i].ranges) bytes += static_cast<std::uint64_t>(range.size()) * 4;
      if (buffers[i].bytes() != bytes) {
        BF_ASSIGN_OR_RETURN(buffers[i], AlignedBuffer::create(bytes));
        held[i] = trace::Held(trace::Owner::kBuffers, bytes);
      }
      std::byte* to = buffers[i].data();
      for (const ParameterRange& range : arrays[i].ranges) {
        const auto from =
            arrays[i].values.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
        std::memcpy(to, from.data(), from.size_bytes());
        to += from.size_bytes();
      }
      parts.push_back({.name = arrays[i].name,
                       .values = {reinterpret_cast<const float*>(buffers[i].data()), bytes / sizeof(float)},
                       .ranges = arrays[i].ranges});
    }
    return {};
  }

  void write() {
    written = write_parts(files, folder, rank, parts);
    done.store(true, std::memory_order_release);
  }
};

PartWriter::PartWriter(CheckpointFiles& files) : state_(std::make_unique<State>(files)) {}

PartWriter::~PartWriter() {
  if (state_->thread.joinable()) state_->thread.join();
}

void PartWriter::begin(const std::string& folder, int rank, std::span<const RunArray> arrays) {
  State& state = *state_;
  if (state.thread.joinable()) state.thread.join();
  state.folder = folder;
  state.rank = rank;
  if (const Status copied = state.copy(arrays); !copied) {
    state.written = tl::unexpected(copied.error());
    return;
  }
  state.done.store(false, std::memory_order_relaxed);
  const auto write = [&state] {
    const trace::Scope scope(trace::Zone::kCheckpoint, {.number = static_cast<std::uint32_t>(state.rank)});
    state.write();
  };
  try {
    state.thread = std::thread(write);
  } catch (const std::system_error&) {
    write();  // no thread to be had: it takes longer
  }
}

bool PartWriter::done() const {
  return state_->done.load(std::memory_order_acquire);
}

Result<std::vector<CheckpointFile>> PartWriter::wait() {
  if (state_->thread.joinable()) state_->thread.join();
  return std::move(state_->written);
}

std::uint64_t PartWriter::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const AlignedBuffer& buffer : state_->buffers) bytes += buffer.bytes();
  return bytes;
}

}  // namespace butterfly
