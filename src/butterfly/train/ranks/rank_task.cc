#include "butterfly/train/ranks/rank_task.h"

#include <algorithm>
#include <cstring>

#include "butterfly/base/hash/digest.h"
#include "butterfly/base/json.h"
#include "butterfly/model/core/config_json.h"

namespace butterfly {
namespace {

using Json = nlohmann::json;

constexpr std::uint16_t kTokensPiece = 100;  // a frame with a piece of a token file; no RankMessageKind
constexpr std::size_t kPieceBytes = 4 << 20;
constexpr std::size_t kTokensMax = 4096;

/// Places are of one machine: none of another's is looked at. Rank 0 alone saves, but all ranks have to know that it
/// does.
void leave_at_rank_zero(RunConfig& config) {
  for (std::string* place : {&config.model, &config.data.tokenizer, &config.resume, &config.out, &config.log_file,
                             &config.events_dir, &config.sample_prompt}) {
    place->clear();
  }
  if (!config.checkpoint.directory.empty()) config.checkpoint.directory = "at rank 0";
  config.parallel.workers.clear();
  config.log = LogLevel::kSilent;
  config.threads = 0;
}

template <typename T>
Result<T> field(const Json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  const bool there = json.is_object() && found != json.end();
  if constexpr (std::is_same_v<T, std::string>) {
    if (there && found->is_string()) return found->template get<T>();
  } else {
    if (there && found->is_number_unsigned()) return found->template get<T>();
  }
  return make_error(ErrorCode::kProtocol, "a rank's task has no {}, or one of another type", name);
}

Result<TaskTokens> parse_tokens(const Json& json) {
  TaskTokens tokens;
  BF_ASSIGN_OR_RETURN(tokens.name, field<std::string>(json, "name"));
  BF_ASSIGN_OR_RETURN(tokens.bytes, field<std::uint64_t>(json, "bytes"));
  BF_ASSIGN_OR_RETURN(tokens.sha256, field<std::string>(json, "sha256"));
  return tokens;
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

std::string to_json(const RankTask& task) {
  RunConfig config = task.config;
  leave_at_rank_zero(config);
  Json tokens = Json::array();
  for (const TaskTokens& one : task.tokens) {
    tokens.push_back({{"name", one.name}, {"bytes", one.bytes}, {"sha256", one.sha256}});
  }
  const Json json = {{"number", static_cast<std::uint64_t>(task.number)},
                     {"run", to_toml(config)},
                     {"shape", to_json(config.shape)},
                     {"isa", std::string(to_string(task.isa))},
                     {"receives_state", static_cast<std::uint64_t>(task.first_state == FirstState::kReceived)},
                     {"tokens", tokens}};
  return dump_json(json);
}

Result<RankTask> parse_rank_task(const std::string& text) {
  const Json json = parse_json(text);
  if (json.is_discarded()) return make_error(ErrorCode::kProtocol, "a rank's task of {} bytes is no JSON", text.size());
  RankTask task;
  BF_ASSIGN_OR_RETURN(const auto number, field<std::uint64_t>(json, "number"));
  if (number < 1 || number > 1024) {
    return make_error(ErrorCode::kProtocol, "a rank's task has the number {}, those of workers are 1 to 1024", number);
  }
  task.number = static_cast<int>(number);
  BF_ASSIGN_OR_RETURN(const auto run, field<std::string>(json, "run"));
  BF_ASSIGN_OR_RETURN(const auto shape, field<std::string>(json, "shape"));
  BF_ASSIGN_OR_RETURN(const auto isa, field<std::string>(json, "isa"));
  BF_ASSIGN_OR_RETURN(const auto receives, field<std::uint64_t>(json, "receives_state"));
  BF_ASSIGN_OR_RETURN(task.config, parse_run_config(run, "a rank's task"));
  BF_ASSIGN_OR_RETURN(task.config.shape, parse_config(shape));
  BF_ASSIGN_OR_RETURN(task.isa, parse_isa(isa));
  task.first_state = receives == 0 ? FirstState::kOwn : FirstState::kReceived;
  const auto tokens = json.find("tokens");
  if (tokens == json.end() || !tokens->is_array() || tokens->size() > kTokensMax) {
    return make_error(ErrorCode::kProtocol, "a rank's task has no list of at most {} token files", kTokensMax);
  }
  for (const Json& one : *tokens) {
    BF_ASSIGN_OR_RETURN(task.tokens.emplace_back(), parse_tokens(one));
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
  for (std::size_t begin = 0; begin < tokens.ids.size(); begin += kPieceBytes) {
    BF_TRY(send(tokens.ids.subspan(begin, std::min(kPieceBytes, tokens.ids.size() - begin))));
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
