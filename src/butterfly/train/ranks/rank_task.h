// What a rank on another machine has to know of a run before it can take part, as text, and the run's tokens on their
// way there. The text comes from a peer: parse_rank_task() leaves nothing in it that would open a file here.
#pragma once

#include <string>
#include <vector>

#include "butterfly/machine/isa.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/train/ranks/rank_control.h"
#include "butterfly/train/run/run_parts.h"

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

/// Without what is about rank 0's machine: files, folders, logs.
std::string to_json(const RankTask& task);
/// Errors: kProtocol naming what is missing or cannot be.
Result<RankTask> parse_rank_task(const std::string& json);

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
