#include "butterfly/train/ranks/rank_task.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/cluster/control/model_config_message.h"
#include "butterfly/train/config/run_keys.h"
#include "butterfly/train/ranks/ranks.pb.h"

namespace butterfly {
namespace {

constexpr std::uint16_t kTokensPiece = 100;  // a frame with a piece of a token file; no RankMessageKind
constexpr std::size_t kSendBytes = 4 << 20;
constexpr int kSettingsMax = 1024;

/// Places are of one machine: none of another's is looked at. Rank 0 alone saves, but all ranks have to know that it
/// does.
void leave_at_rank_zero(RunConfig& config) {
  for (std::string* place : {&config.model, &config.data.tokenizer, &config.resume, &config.out, &config.log_file,
                             &config.events_dir, &config.sample_prompt}) {
    place->clear();
  }
  if (!config.checkpoint.directory.empty()) config.checkpoint.directory = kSavedAtRankZero;
  config.parallel.workers.clear();
  config.parallel.join_at.clear();
  config.parallel.rendezvous.clear();
  config.parallel.nnodes.clear();
  config.log = LogLevel::kSilent;
  config.threads = 0;
}

void store(const KeyValue& value, ranks::Setting& message) {
  struct Writer {
    ranks::Setting& to;
    void operator()(bool flag) const { to.set_flag(flag); }
    void operator()(std::int64_t number) const { to.set_whole(number); }
    void operator()(std::uint64_t number) const { to.set_natural(number); }
    void operator()(double number) const { to.set_number(number); }
    void operator()(const std::string& text) const { to.set_text(text); }
    void operator()(const std::vector<std::string>& texts) const {
      to.mutable_texts()->mutable_texts()->Assign(texts.begin(), texts.end());
    }
    void operator()(const std::vector<double>& numbers) const {
      to.mutable_numbers()->mutable_numbers()->Assign(numbers.begin(), numbers.end());
    }
  };
  std::visit(Writer{message}, value);
}

/// Nothing for a message without a value, or with a number that is none.
std::optional<KeyValue> read_value(const ranks::Setting& message) {
  const auto finite = [](double number) { return std::isfinite(number); };
  switch (message.value_case()) {
    case ranks::Setting::kFlag:
      return message.flag();
    case ranks::Setting::kWhole:
      return message.whole();
    case ranks::Setting::kNatural:
      return message.natural();
    case ranks::Setting::kNumber:
      return finite(message.number()) ? std::optional<KeyValue>(message.number()) : std::nullopt;
    case ranks::Setting::kText:
      return message.text();
    case ranks::Setting::kTexts:
      return std::vector<std::string>(message.texts().texts().begin(), message.texts().texts().end());
    case ranks::Setting::kNumbers: {
      const auto& numbers = message.numbers().numbers();
      if (!std::ranges::all_of(numbers, finite)) return std::nullopt;
      return std::vector<double>(numbers.begin(), numbers.end());
    }
    case ranks::Setting::VALUE_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

Status read_setting(const ranks::Setting& message, RunConfig& config) {
  const auto key = std::ranges::find(run_keys(), message.key(), &RunKey::name);
  if (key == run_keys().end()) {
    return make_error(ErrorCode::kProtocol, "a rank's task sets {}, there is no such key", printable(message.key()));
  }
  const KeyValue before = key->get(config);
  const auto value = read_value(message);
  if (!value || value->index() != before.index()) {
    return make_error(ErrorCode::kProtocol, "a rank's task sets {} to {}, expected {}", key->name,
                      value ? kind_of(*value) : "nothing that is a value", kind_of(before));
  }
  const Status set = key->set(config, *value);
  if (set) return {};
  return make_error(ErrorCode::kProtocol, "a rank's task sets {} to what it cannot be: {}", key->name,
                    set.error().message);
}

Result<TaskTokens> read_tokens(const ranks::TokenFile& message) {
  if (message.sha256().size() != sizeof(Sha256)) {
    return make_error(ErrorCode::kProtocol, "a rank's task has a token file with a SHA-256 of {} bytes, expected {}",
                      message.sha256().size(), sizeof(Sha256));
  }
  return TaskTokens{.name = message.name(), .bytes = message.bytes(), .sha256 = to_hex(as_bytes(message.sha256()))};
}

/// Every file of the configuration is one of these, or a corpus that is made up.
Status check_files(const RunConfig& config, const std::vector<TaskTokens>& tokens) {
  std::vector<std::string> files = config.data.files;
  if (!config.data.validation_file.empty()) files.push_back(config.data.validation_file);
  for (const std::string& file : files) {
    const bool known = std::ranges::find(tokens, file, &TaskTokens::name) != tokens.end();
    if (known || (tokens.empty() && file.starts_with("synthetic:"))) continue;
    return make_error(ErrorCode::kProtocol, "a rank's task names a file that is not among the {} it brings",
                      tokens.size());
  }
  return {};
}

Result<std::string> hash_of_bytes(ByteSpan header, ByteSpan ids) {
  Sha256Hasher hash;
  hash.add(header);
  hash.add(ids);
  return hash.finish();
}

}  // namespace

void store(const RankTask& task, ranks::Task& message) {
  RunConfig config = task.config;
  leave_at_rank_zero(config);
  message.set_number(task.number);
  for (const RunKey& key : run_keys()) {
    ranks::Setting& setting = *message.add_settings();
    setting.set_key(key.name);
    store(key.get(config), setting);
  }
  store(config.shape, *message.mutable_shape());
  message.set_isa(static_cast<std::uint32_t>(task.isa));
  message.set_receives_state(task.first_state == FirstState::kReceived);
  for (const TaskTokens& one : task.tokens) {
    ranks::TokenFile& file = *message.add_tokens();
    file.set_name(one.name);
    file.set_bytes(one.bytes);
    const auto hash = from_hex(one.sha256).value_or(std::vector<std::byte>{});
    file.set_sha256(std::string(as_text(hash)));
  }
}

Result<RankTask> read_rank_task(const ranks::Task& message) {
  if (message.number() < 1 || message.number() > kRankNumberMax) {
    return make_error(ErrorCode::kProtocol, "a rank's task has the number {}, those of workers are 1 to {}",
                      message.number(), kRankNumberMax);
  }
  if (message.isa() >= kAllIsas.size()) {
    return make_error(ErrorCode::kProtocol, "a rank's task has instruction set {}, there are {}", message.isa(),
                      kAllIsas.size());
  }
  if (message.settings_size() > kSettingsMax || message.tokens_size() > kTaskTokensMax) {
    return make_error(ErrorCode::kProtocol,
                      "a rank's task has {} settings and {} token files, the limits are {} and {}",
                      message.settings_size(), message.tokens_size(), kSettingsMax, kTaskTokensMax);
  }
  RankTask task{.number = message.number(),
                .isa = static_cast<Isa>(message.isa()),
                .first_state = message.receives_state() ? FirstState::kReceived : FirstState::kOwn};
  for (const ranks::Setting& setting : message.settings()) BF_TRY(read_setting(setting, task.config));
  BF_ASSIGN_OR_RETURN(task.config.shape, read_model_config(message.shape()));
  for (const ranks::TokenFile& file : message.tokens()) {
    BF_ASSIGN_OR_RETURN(task.tokens.emplace_back(), read_tokens(file));
  }
  leave_at_rank_zero(task.config);
  BF_TRY(check_files(task.config, task.tokens));
  return task;
}

Result<std::vector<TokenBytes>> name_tokens(const Dataset& data, DataConfig& config) {
  const std::vector<TokenPart> parts = data.parts();
  std::vector<TokenBytes> all;
  if (parts.empty()) return all;
  config.files.clear();
  for (const TokenPart& part : parts) {
    TokenBytes one{.header = token_file_header(part.vocab, part.hash, static_cast<std::uint64_t>(part.tokens.size())),
                   .ids = part.tokens.bytes()};
    BF_ASSIGN_OR_RETURN(one.what.sha256, hash_of_bytes(one.header, one.ids));
    one.what.name = fmt::format("tokens-{}", all.size());
    one.what.bytes = one.header.size() + one.ids.size();
    config.files.push_back(one.what.name);
    all.push_back(std::move(one));
  }
  if (!config.validation_file.empty()) {
    config.validation_file = config.files.back();
    config.files.pop_back();
  }
  return all;
}

Status send_tokens(Channel& channel, const TokenBytes& tokens, std::chrono::milliseconds timeout) {
  const auto send = [&](ByteSpan bytes) -> Status {
    BF_ASSIGN_OR_RETURN(const Payload payload, allocate_payload(bytes.size()));
    std::memcpy(payload.bytes.data(), bytes.data(), bytes.size());
    return channel.send({.type = kTokensPiece, .payload = payload}, std::chrono::steady_clock::now() + timeout);
  };
  BF_TRY(send(tokens.header));
  for (std::size_t begin = 0; begin < tokens.ids.size(); begin += kSendBytes) {
    BF_TRY(send(tokens.ids.subspan(begin, std::min(kSendBytes, tokens.ids.size() - begin))));
  }
  return {};
}

Result<AlignedBuffer> receive_tokens(Channel& channel, const TaskTokens& what, std::chrono::milliseconds timeout) {
  BF_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::create(what.bytes));
  const MutableByteSpan all(buffer.data(), static_cast<std::size_t>(what.bytes));
  std::size_t filled = 0;
  const PayloadAllocator next = [&](std::uint64_t bytes) -> Result<Payload> {
    if (bytes == 0 || bytes > all.size() - filled) {
      return make_error(ErrorCode::kProtocol, "a piece of {} bytes after {} of a token file's {}", bytes, filled,
                        all.size());
    }
    return Payload{.bytes = all.subspan(filled, static_cast<std::size_t>(bytes))};
  };
  while (filled < all.size()) {
    BF_ASSIGN_OR_RETURN(const Message piece, channel.receive(next, std::chrono::steady_clock::now() + timeout));
    if (piece.type != kTokensPiece || piece.payload.bytes.empty()) {
      return make_error(ErrorCode::kProtocol, "a message of type {} where {} bytes of a token file are due", piece.type,
                        all.size() - filled);
    }
    const ByteSpan got = piece.payload.bytes;
    if (got.data() != all.data() + filled) {  // handed over between threads, where nobody asks for a place
      BF_TRY(next(got.size()));
      std::memcpy(all.data() + filled, got.data(), got.size());
    }
    filled += got.size();
  }
  BF_ASSIGN_OR_RETURN(const std::string hash, hash_of_bytes(all, {}));
  if (hash == what.sha256) return buffer;
  return make_error(ErrorCode::kProtocol, "a token file arrived with the digest {:.12}, {:.12} was announced", hash,
                    what.sha256);
}

}  // namespace butterfly
