#include "butterfly/stage/stage_step.h"

#include <algorithm>
#include <cstring>

namespace butterfly {
namespace {

/// All numbers of a step are 32 bits wide.
std::vector<std::byte> to_bytes(const std::vector<std::int32_t>& words, std::string_view text = {}) {
  std::vector<std::byte> bytes(words.size() * 4 + text.size());
  std::memcpy(bytes.data(), words.data(), words.size() * 4);
  std::copy_n(as_bytes(text).begin(), text.size(), bytes.begin() + static_cast<std::ptrdiff_t>(words.size() * 4));
  return bytes;
}

Error decode_failure(const Message& message) {
  ByteReader reader(message.meta);
  const auto code = reader.read<std::uint32_t>();
  Error error;
  error.code = code && *code <= static_cast<std::uint32_t>(ErrorCode::kCancelled) ? static_cast<ErrorCode>(*code)
                                                                                  : ErrorCode::kProtocol;
  error.message = std::string(as_text(*reader.take(reader.remaining())));
  return error;
}

Status check_run(const SequenceRun& run, const StepLimits& limits) {
  if (run.rows <= 0 || run.position < 0 || run.logits_from < 0 || run.logits_from > run.rows) {
    return make_error(ErrorCode::kProtocol, "a step has a run of {} rows from position {} with logits from {}",
                      run.rows, run.position, run.logits_from);
  }
  if (static_cast<std::int64_t>(run.position) + run.rows > limits.context) {
    return make_error(ErrorCode::kProtocol, "a step reaches position {}, the context is {}",
                      static_cast<std::int64_t>(run.position) + run.rows, limits.context);
  }
  if (run.logits_to != 0 && (run.logits_to < run.logits_from || run.logits_to > run.rows)) {
    return make_error(ErrorCode::kProtocol, "a run of {} rows wants logits from {} to {}", run.rows, run.logits_from,
                      run.logits_to);
  }
  if (run.encoder_rows < 0 || run.encoder_rows > limits.context) {
    return make_error(ErrorCode::kProtocol, "a step attends to {} encoded positions, the context is {}",
                      run.encoder_rows, limits.context);
  }
  return {};
}

constexpr std::uint64_t kRunBytes = 6 * sizeof(std::int32_t);
constexpr std::uint64_t kShareBytes = 3 * sizeof(std::int32_t);

}  // namespace

Message encode_step(Step step) {
  Message message;
  message.type = static_cast<std::uint16_t>(StepMessage::kStep);
  message.epoch = step.epoch;
  message.tag = step.id;
  std::vector<std::int32_t> words{
      static_cast<std::int32_t>(step.batch.runs.size()), static_cast<std::int32_t>(step.release.size()),
      static_cast<std::int32_t>(step.batch.kind), static_cast<std::int32_t>(step.share.size())};
  for (const SequenceRun& run : step.batch.runs) {
    words.insert(words.end(),
                 {run.sequence.value, run.position, run.rows, run.logits_from, run.logits_to, run.encoder_rows});
  }
  for (const SequenceId sequence : step.release) words.push_back(sequence.value);
  for (const SharedPrefix& shared : step.share) {
    words.insert(words.end(), {shared.from.value, shared.to.value, shared.tokens});
  }
  message.meta = to_bytes(words);
  if (step.tensor.rank() > 0) message.payload = {step.tensor.owner(), step.tensor.bytes()};
  return message;
}

Message encode_failure(std::uint64_t id, Epoch epoch, const Error& error) {
  Message message;
  message.type = static_cast<std::uint16_t>(StepMessage::kFailed);
  message.epoch = epoch;
  message.tag = id;
  message.meta = to_bytes({static_cast<std::int32_t>(error.code)}, std::string_view(error.message).substr(0, 4096));
  return message;
}

Result<Step> decode_step(const Message& message, const StepLimits& limits) {
  if (message.type == static_cast<std::uint16_t>(StepMessage::kFailed)) {
    return tl::unexpected(decode_failure(message));
  }
  if (message.type != static_cast<std::uint16_t>(StepMessage::kStep)) {
    return make_error(ErrorCode::kProtocol, "a message of type {} came where steps are expected", message.type);
  }
  ByteReader reader(message.meta);
  const auto runs = reader.read<std::uint32_t>();
  const auto releases = reader.read<std::uint32_t>();
  const auto kind = reader.read<std::uint32_t>();
  const auto shares = reader.read<std::uint32_t>();
  if (!shares || *runs * kRunBytes + std::uint64_t{*releases} * 4 + *shares * kShareBytes != reader.remaining()) {
    return make_error(ErrorCode::kProtocol, "a step of {} bytes does not hold its {} runs, {} releases and {} shares",
                      message.meta.size(), runs.value_or(0), releases.value_or(0), shares.value_or(0));
  }
  if (*kind > static_cast<std::uint32_t>(BatchKind::kEncode)) {
    return make_error(ErrorCode::kProtocol, "a step is of kind {}, the last one is {}", *kind,
                      static_cast<std::uint32_t>(BatchKind::kEncode));
  }
  Step step;
  step.id = message.tag;
  step.epoch = message.epoch;
  step.batch.kind = static_cast<BatchKind>(*kind);
  for (std::uint32_t i = 0; i < *runs; ++i) {
    SequenceRun run;
    run.sequence = SequenceId(*reader.read<std::int32_t>());
    run.position = *reader.read<std::int32_t>();
    run.rows = *reader.read<std::int32_t>();
    run.logits_from = *reader.read<std::int32_t>();
    run.logits_to = *reader.read<std::int32_t>();
    run.encoder_rows = *reader.read<std::int32_t>();
    BF_TRY(check_run(run, limits));
    // Two runs of one sequence in a step could race for the same cache pages.
    const bool twice = std::any_of(step.batch.runs.begin(), step.batch.runs.end(),
                                   [&](const SequenceRun& other) { return other.sequence == run.sequence; });
    if (twice) return make_error(ErrorCode::kProtocol, "a step names sequence {} twice", run.sequence.value);
    step.batch.runs.push_back(run);
    if (step.batch.rows() > limits.rows_max) {
      return make_error(ErrorCode::kProtocol, "a step has over {} rows", limits.rows_max);
    }
  }
  for (std::uint32_t i = 0; i < *releases; ++i) step.release.emplace_back(*reader.read<std::int32_t>());
  for (std::uint32_t i = 0; i < *shares; ++i) {
    const SequenceId from(*reader.read<std::int32_t>());
    const SequenceId to(*reader.read<std::int32_t>());
    step.share.push_back({.from = from, .to = to, .tokens = *reader.read<std::int32_t>()});
  }
  return step;
}

}  // namespace butterfly
