#include "butterfly/cluster/control/control_link.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "butterfly/base/hash/digest.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/message_bytes.h"
#include "butterfly/cluster/control/model_config_message.h"
#include "butterfly/model/inference/kv_cache.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {
namespace {

constexpr std::int64_t kSendTimeoutMs = 2000;
constexpr int kStageLayersMax = 1 << 20;
constexpr int kStagesMax = 1 << 16;
constexpr int kHoldersMax = 16;

}  // namespace

Result<Payload> refuse_payload(std::uint64_t bytes) {
  return make_error(ErrorCode::kProtocol, "a message came with a payload of {} bytes, it has none", bytes);
}

Status ControlLink::send(const control::ControlMessage& message) {
  Message framed;
  BF_ASSIGN_OR_RETURN(framed.meta, write_message(message, peer()));
  std::lock_guard lock(sending_);
  return channel_->send(std::move(framed), after_ms(kSendTimeoutMs));
}

Result<control::ControlMessage> ControlLink::receive(Deadline deadline) {
  BF_ASSIGN_OR_RETURN(const Message framed, channel_->receive(refuse_payload, deadline));
  control::ControlMessage message;
  if (!read_message(framed.meta, message) || message.body_case() == control::ControlMessage::BODY_NOT_SET) {
    return make_error(ErrorCode::kProtocol, "{} sent {} bytes that are no control message whose names are UTF-8",
                      peer(), framed.meta.size());
  }
  return message;
}

std::string input_label(Rank stage) {
  return fmt::format("input.{}", stage.value);
}

std::string output_label(Rank stage) {
  return fmt::format("output.{}", stage.value);
}

std::string member_label(Rank stage, int member) {
  return fmt::format("member{}.{}", member, stage.value);
}

std::string data_label(const std::string& what, Epoch epoch) {
  return fmt::format("{}@{}", what, epoch.value);
}

namespace {

/// All of `text` as a number, written the one way that std::to_chars does.
std::optional<std::uint32_t> parse_number(std::string_view text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end || std::to_string(value) != text) return std::nullopt;
  return value;
}

bool is_data(const std::string& what) {
  if (what == kWeightsLabel || what == kHolderLabel) return true;
  const std::size_t dot = what.find('.');
  if (dot == std::string::npos) return false;
  const auto stage = parse_number(std::string_view(what).substr(dot + 1));
  if (!stage || *stage >= kStagesMax) return false;
  const Rank rank(static_cast<int>(*stage));
  if (what == input_label(rank) || what == output_label(rank)) return true;
  for (int member = 0; member < kReductionSlices; ++member) {
    if (what == member_label(rank, member)) return true;
  }
  return false;
}

}  // namespace

std::optional<DataLabel> parse_data_label(const std::string& label) {
  const std::size_t at = label.find('@');
  if (at == std::string::npos) return std::nullopt;
  DataLabel parsed{.what = label.substr(0, at)};
  if (!is_data(parsed.what)) return std::nullopt;
  const auto epoch = parse_number(std::string_view(label).substr(at + 1));
  if (!epoch) return std::nullopt;
  parsed.epoch = Epoch(*epoch);
  return parsed;
}

void store(const Error& error, control::Failure& failure, Epoch epoch) {
  failure.set_epoch(epoch.value);
  failure.set_code(static_cast<std::uint32_t>(error.code));
  failure.set_message(error.message);
}

Error read_failure(const control::Failure& failure, const std::string& peer) {
  const bool known = failure.code() <= static_cast<std::uint32_t>(ErrorCode::kCancelled);
  return {.code = known ? static_cast<ErrorCode>(failure.code()) : ErrorCode::kProtocol,
          .message = fmt::format("{}: {}", peer, failure.message())};
}

void store(const NodeDescriptor& node, control::Node& message) {
  message.set_name(node.name);
  message.set_isa(std::string(to_string(node.isa)));
  message.set_threads(node.threads);
  message.set_memory_bytes(node.memory_bytes);
  message.set_memory_read_gb_per_s(node.memory_read_gb_per_s);
  message.set_fp32_gflops(node.fp32_gflops);
  message.set_int8_gops(node.int8_gops);
  message.set_dispatch_us(node.dispatch_us);
  message.set_wake_us(node.wake_us);
  if (node.emulated_speed < 1.0) message.set_emulated_speed(node.emulated_speed);
  for (const MatmulRate& rate : node.matmuls) {
    // Coordinators of earlier versions refuse a matmul whose type they do not know.
    const bool of_cache = is_attention(rate.type) && rate.type != kAttention;
    auto* matmul = of_cache ? message.add_caches() : message.add_matmuls();
    matmul->set_type(rate.type);
    matmul->set_decode_gb_per_s(rate.decode_gb_per_s);
    matmul->set_prefill_gflops(rate.prefill_gflops);
    matmul->set_cached_gb_per_s(rate.cached_gb_per_s);
  }
}

namespace {

Status read_rate(const control::Matmul& matmul, std::vector<MatmulRate>& rates) {
  for (const double speed : {matmul.decode_gb_per_s(), matmul.prefill_gflops(), matmul.cached_gb_per_s()}) {
    if (!std::isfinite(speed) || speed < 0) {
      return make_error(ErrorCode::kProtocol, "a worker says that its speed with {} is {}", matmul.type(), speed);
    }
  }
  rates.push_back({matmul.type(), matmul.decode_gb_per_s(), matmul.prefill_gflops(), matmul.cached_gb_per_s()});
  return {};
}

Result<std::vector<MatmulRate>> read_matmuls(const control::Node& message) {
  constexpr int kMatmulsMax = 16;
  for (const int count : {message.matmuls_size(), message.caches_size()}) {
    if (count <= kMatmulsMax) continue;
    return make_error(ErrorCode::kProtocol, "a worker says how fast {} types are, the limit is {}", count, kMatmulsMax);
  }
  std::vector<MatmulRate> rates;
  for (const auto& matmul : message.matmuls()) {
    if (!parse_dtype(matmul.type()) && matmul.type() != kAttention) {
      return make_error(ErrorCode::kProtocol, "a worker says how fast weights of a type are that is not known here");
    }
    BF_TRY(read_rate(matmul, rates));
  }
  for (const auto& cache : message.caches()) {
    if (is_attention(cache.type())) BF_TRY(read_rate(cache, rates));
  }
  return rates;
}

}  // namespace

Result<NodeDescriptor> read_node(const control::Node& message) {
  auto isa = parse_isa(message.isa());
  if (!isa) return make_error(ErrorCode::kProtocol, "a worker describes itself: {}", isa.error().message);
  if (message.threads() < 1) {
    return make_error(ErrorCode::kProtocol, "a worker says that it has {} threads", message.threads());
  }
  for (const double speed : {message.memory_read_gb_per_s(), message.fp32_gflops(), message.int8_gops(),
                             message.emulated_speed(), message.dispatch_us(), message.wake_us()}) {
    if (!std::isfinite(speed) || speed < 0) {
      return make_error(ErrorCode::kProtocol, "a worker says that its speed is {}", speed);
    }
  }
  BF_ASSIGN_OR_RETURN(auto matmuls, read_matmuls(message));
  return NodeDescriptor{.name = message.name(),
                        .isa = *isa,
                        .threads = message.threads(),
                        .memory_bytes = message.memory_bytes(),
                        .memory_read_gb_per_s = message.memory_read_gb_per_s(),
                        .fp32_gflops = message.fp32_gflops(),
                        .int8_gops = message.int8_gops(),
                        .dispatch_us = message.dispatch_us(),
                        .wake_us = message.wake_us(),
                        .emulated_speed = message.emulated_speed() > 0 ? message.emulated_speed() : 1.0,
                        .matmuls = std::move(matmuls)};
}

void store(const StageAssignment& stage, control::Stage& message) {
  message.set_first_layer(stage.first_layer);
  message.set_last_layer(stage.last_layer);
  message.set_embedding(stage.embedding);
  message.set_head(stage.head);
  message.set_first_slice(stage.slices.first);
  message.set_last_slice(stage.slices.last);
  message.set_first_expert_slice(stage.slices.experts.first);
  message.set_last_expert_slice(stage.slices.experts.last);
}

StageAssignment read_stage(const control::Stage& message) {
  return {.first_layer = message.first_layer(),
          .last_layer = message.last_layer(),
          .embedding = message.embedding(),
          .head = message.head(),
          .slices = {{message.first_slice(), message.last_slice()},
                     {message.first_expert_slice(), message.last_expert_slice()}}};
}

void store(const ExchangeTimes& times, control::ReadyShare& message) {
  if (!times.measured()) return;
  message.set_one_row_us(times.one_row_s * 1e6);
  message.set_many_rows(times.many_rows);
  message.set_many_rows_us(times.many_rows_s * 1e6);
  message.set_one_row_block_us(times.one_row_block_s * 1e6);
  message.set_many_rows_block_us(times.many_rows_block_s * 1e6);
}

ExchangeEngine read_exchange(const control::ReadyShare& message) {
  const bool known = message.exchange() <= static_cast<std::uint32_t>(ExchangeEngine::kBoth);
  return known ? static_cast<ExchangeEngine>(message.exchange()) : ExchangeEngine::kNone;
}

ExchangeTimes read_exchange_times(const control::ReadyShare& message) {
  const std::array times_us{message.one_row_us(), message.many_rows_us(), message.one_row_block_us(),
                            message.many_rows_block_us()};
  if (!std::ranges::all_of(times_us, [](double us) { return std::isfinite(us) && us >= 0.0; })) return {};
  return {.one_row_s = times_us[0] * 1e-6,
          .many_rows = message.many_rows(),
          .many_rows_s = times_us[1] * 1e-6,
          .one_row_block_s = times_us[2] * 1e-6,
          .many_rows_block_s = times_us[3] * 1e-6};
}

namespace {

void store(const StageSettings& settings, control::StageSettings& message) {
  message.set_kv_type(static_cast<std::uint32_t>(settings.kv_type));
  message.set_wire_type(static_cast<std::uint32_t>(settings.wire_type));
  message.set_compression(static_cast<std::uint32_t>(settings.compression));
}

Result<StageSettings> read_settings(const control::StageSettings& message) {
  const auto type_of = [](std::uint32_t number) {
    return number < kAllDTypes.size() ? std::optional(static_cast<DType>(number)) : std::nullopt;
  };
  const auto kv_type = type_of(message.kv_type()), wire_type = type_of(message.wire_type());
  if (!kv_type || !is_cache_type(*kv_type)) {
    return make_error(ErrorCode::kProtocol,
                      "an assignment with a cache of type {}, expected {} (f32), {} (f16) or {} (q8_0)",
                      message.kv_type(), static_cast<int>(DType::kF32), static_cast<int>(DType::kF16),
                      static_cast<int>(DType::kQ8_0));
  }
  if (!wire_type || !is_wire_type(*wire_type)) {
    return make_error(ErrorCode::kProtocol,
                      "an assignment with activations of type {}, expected {} (f32), {} (f16) or {} (q8_0)",
                      message.wire_type(), static_cast<int>(DType::kF32), static_cast<int>(DType::kF16),
                      static_cast<int>(DType::kQ8_0));
  }
  if (message.compression() > static_cast<std::uint32_t>(Compression::kZstd)) {
    return make_error(ErrorCode::kProtocol, "an assignment with compression {}, the last one is {} (zstd)",
                      message.compression(), static_cast<int>(Compression::kZstd));
  }
  return StageSettings{
      .kv_type = *kv_type, .wire_type = *wire_type, .compression = static_cast<Compression>(message.compression())};
}

}  // namespace

void store(std::span<const Assignment> assignments, control::Assign& message) {
  const Assignment& any = assignments.front();
  message.set_epoch(any.epoch.value);
  const auto hash = from_hex(any.model.hash).value_or(std::vector<std::byte>{});
  message.set_model_sha256(std::string(as_text(hash)));
  message.set_model_bytes(any.model.bytes);
  message.set_model_name(any.model.name);
  store(any.config, *message.mutable_config());
  store(any.settings, *message.mutable_settings());
  message.set_stages(any.stages);
  for (const std::string& holder : any.holders) message.add_holders(holder);
  for (const Assignment& assignment : assignments) {
    control::Share& share = *message.add_shares();
    store(assignment.stage, *share.mutable_stage());
    share.set_rank(assignment.rank.value);
    share.set_next_address(assignment.next_address);
    for (const std::string& address : assignment.group) share.add_group(address);
    share.set_member(assignment.member);
  }
}

namespace {

Status check_group(const control::Share& share) {
  const int members = std::max(1, share.group_size());
  if (members > kReductionSlices || share.member() < 0 || share.member() >= members) {
    return make_error(ErrorCode::kProtocol, "an assignment as member {} of {}, a tensor group has at most {}",
                      share.member(), members, kReductionSlices);
  }
  const HeldSlices held = read_stage(share.stage()).slices;
  if (!is_run(held) || !is_run(held.experts) || held.empty() || held.whole() != (members == 1)) {
    return make_error(ErrorCode::kProtocol, "an assignment of slices {} to {}, experts' {} to {}, in a group of {}",
                      held.first, held.last, held.experts.first, held.experts.last, members);
  }
  return {};
}

Status check_share(const control::Share& share, int stages) {
  const auto& stage = share.stage();
  if (stage.first_layer() < 0 || stage.last_layer() < stage.first_layer() || stage.last_layer() > kStageLayersMax) {
    return make_error(ErrorCode::kProtocol, "an assignment of layers {} to {}", stage.first_layer(),
                      stage.last_layer());
  }
  if (stages > kStagesMax || share.rank() < 0 || share.rank() >= stages) {
    return make_error(ErrorCode::kProtocol, "an assignment of stage {} of {}", share.rank(), stages);
  }
  BF_TRY(check_group(share));
  const bool sends_on = share.member() == 0 && share.rank() + 1 < stages;
  if (sends_on == share.next_address().empty()) {
    return make_error(ErrorCode::kProtocol, "member {} of stage {} of {} with '{}' as the next worker", share.member(),
                      share.rank(), stages, share.next_address());
  }
  return {};
}

Result<ModelIdentity> read_model(const control::Assign& message) {
  if (message.model_sha256().size() != sizeof(Sha256)) {
    return make_error(ErrorCode::kProtocol, "an assignment of a model with a SHA-256 of {} bytes, expected {}",
                      message.model_sha256().size(), sizeof(Sha256));
  }
  return ModelIdentity{
      .hash = to_hex(as_bytes(message.model_sha256())), .bytes = message.model_bytes(), .name = message.model_name()};
}

}  // namespace

Result<std::vector<Assignment>> read_assignments(const control::Assign& message) {
  if (message.shares().empty() || message.shares_size() > kSharesMax) {
    return make_error(ErrorCode::kProtocol, "an assignment of {} stages to one worker, expected 1 to {}",
                      message.shares_size(), kSharesMax);
  }
  if (message.holders_size() > kHoldersMax) {
    return make_error(ErrorCode::kProtocol, "an assignment with {} holders of its weights, the limit is {}",
                      message.holders_size(), kHoldersMax);
  }
  BF_ASSIGN_OR_RETURN(const ModelIdentity model, read_model(message));
  BF_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(message.config()));
  BF_ASSIGN_OR_RETURN(const StageSettings settings, read_settings(message.settings()));
  std::vector<Assignment> assignments;
  for (const control::Share& share : message.shares()) {
    BF_TRY(check_share(share, message.stages()));
    if (!assignments.empty() && share.rank() <= assignments.back().rank.value) {
      return make_error(ErrorCode::kProtocol, "an assignment of stage {} after stage {}", share.rank(),
                        assignments.back().rank.value);
    }
    assignments.push_back({.epoch = Epoch(message.epoch()),
                           .model = model,
                           .config = config,
                           .settings = settings,
                           .stage = read_stage(share.stage()),
                           .rank = Rank(share.rank()),
                           .stages = message.stages(),
                           .next_address = share.next_address(),
                           .holders = {message.holders().begin(), message.holders().end()},
                           .group = {share.group().begin(), share.group().end()},
                           .member = share.member()});
  }
  return assignments;
}

}  // namespace butterfly
