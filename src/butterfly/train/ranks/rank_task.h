// What a rank on another machine has to know of a run before it can take part, as a message, and the run's tokens on
// their way there. The message comes from a peer: read_rank_task() leaves nothing in it that would open a file here.
#pragma once

#include <string>
#include <vector>

#include "butterfly/machine/isa.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/train/run/run_parts.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly::ranks {
class Task;
}  // namespace butterfly::ranks

namespace butterfly {

/// Tokens by content, so that two machines agree on them whatever the file is called.
struct TaskTokens {
  std::string name{};  // that the task's configuration has for them
  std::uint64_t bytes = 0;
  std::string sha256{};  // lower-case hex
};

struct RankTask {
  int number = 0;             // of the rank, from 1
  RunConfig config{};         // every choice made, the shape among them
  Isa isa = Isa::kReference;  // of every rank: what each computes for itself has to be the same
  FirstState first_state = FirstState::kOwn;
  std::vector<TaskTokens> tokens{};
};

/// Ranks have numbers up to this.
inline constexpr int kRankNumberMax = 1024;

/// How many token files a task may name.
inline constexpr int kTaskTokensMax = 4096;

/// Without what is about rank 0's machine: files, folders, logs.
void store(const RankTask& task, ranks::Task& message);
/// Errors: kProtocol naming what is missing or cannot be; those of read_model_config().
Result<RankTask> read_rank_task(const ranks::Task& message);

/// A token file in two pieces, of the run's dataset or of a file.
struct TokenBytes {
  TaskTokens what{};
  std::array<std::byte, kTokenHeaderBytes> header{};
  ByteSpan ids{};
};

/// The tokens of a dataset under names of their own, and the names put into `config`. Errors: kUnsupported (no
/// SHA-256).
Result<std::vector<TokenBytes>> name_tokens(const Dataset& data, DataConfig& config);

/// In pieces, from rank 0. Errors: those of the channel.
Status send_tokens(Channel& channel, const TokenBytes& tokens, std::chrono::milliseconds timeout);

/// The other end; `timeout` for each piece. Errors: those of the channel; kProtocol for other bytes than were
/// announced; kNoMemory.
Result<AlignedBuffer> receive_tokens(Channel& channel, const TaskTokens& what, std::chrono::milliseconds timeout);

}  // namespace butterfly
