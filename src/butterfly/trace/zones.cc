#include "butterfly/trace/zones.h"

namespace butterfly::trace {
namespace {

struct ZoneRow {
  std::string_view name;
  ZoneKind kind;
};

using enum ZoneKind;
constexpr auto kZones = static_cast<std::size_t>(Zone::kCount);
constexpr std::array<ZoneRow, kZones> kZoneRows{{
    {"turn", kStep},
    {"prefill", kStep},
    {"decode", kStep},
    {"mixed", kStep},
    {"encode", kStep},
    {"train_step", kStep},
    {"schedule", kPhase},
    {"data", kPhase},
    {"forward", kPhase},
    {"backward", kPhase},
    {"optimizer", kPhase},
    {"communication", kPhase},
    {"layer", kLayer},
    {"qkv", kOperation},
    {"query", kOperation},
    {"key", kOperation},
    {"value", kOperation},
    {"latent", kOperation},
    {"attention_output", kOperation},
    {"gate_up", kOperation},
    {"gate", kOperation},
    {"up", kOperation},
    {"down", kOperation},
    {"router", kOperation},
    {"experts", kOperation},
    {"cross", kOperation},
    {"lm_head", kOperation},
    {"matmul", kOperation},
    {"attention", kOperation},
    {"softmax_loss", kOperation},
    {"embedding", kOperation},
    {"norm", kOperation},
    {"rotary", kOperation},
    {"activation", kOperation},
    {"residual", kOperation},
    {"quantize", kOperation},
    {"cast", kOperation},
    {"reduce_slices", kOperation},
    {"gradient_clear", kOperation},
    {"gradient_norm", kOperation},
    {"update", kOperation},
    {"bias", kOperation},
    {"dispatch", kOperation},
    {"gradient_sum", kOperation},
    {"sample", kOperation},
    {"grammar", kOperation},
    {"text_encode", kOperation},
    {"text_decode", kOperation},
    {"tell", kOperation},
    {"gather", kOperation},
    {"emulation", kOperation},
    {"send", kCommunication},
    {"receive", kCommunication},
    {"encode_activations", kCommunication},
    {"decode_activations", kCommunication},
    {"group_exchange", kCommunication},
    {"all_reduce", kCommunication},
    {"all_gather", kCommunication},
    {"reduce_scatter", kCommunication},
    {"broadcast", kCommunication},
    {"compress", kCommunication},
    {"all_to_all", kCommunication},
    {"reduce_bucket", kCommunication},
    {"wait_step", kWait},
    {"wait_answer", kWait},
    {"wait_gradients", kWait},
    {"wait_turn", kWait},
    {"wait_request", kWait},
    {"wait_members", kWait},
    {"load_model", kOther},
    {"pack_weights", kOther},
    {"checkpoint", kOther},
    {"evaluate", kOther},
}};

constexpr std::array<std::string_view, 7> kKindNames{"step",          "phase", "layer", "operation",
                                                     "communication", "wait",  "other"};

constexpr std::array<std::string_view, static_cast<std::size_t>(Counter::kCount)> kCounterNames{
    "kernel.flops",
    "kernel.weight_bytes",
    "team.runs",
    "team.wakes",
    "tensor.pool_allocations",
    "tensor.pool_hits",
    "wire.bytes_received",
    "wire.bytes_sent",
    "wire.messages_received",
    "wire.messages_sent",
    "wire.stale_messages",
    "wire.waits_blocked",
    "wire.waits_spun",
    "wire.bytes_saved",
    "infer.tokens_decoded",
    "infer.tokens_prefilled",
    "train.tokens"};

constexpr std::array<std::string_view, static_cast<std::size_t>(Owner::kCount)> kOwnerNames{
    "weights", "gradients", "optimizer", "activations", "kv_cache", "buffers"};

constexpr std::array<std::string_view, 4> kPassNames{"forward", "input_gradient", "weight_gradient", "recompute"};

template <typename Names, typename Value>
std::string_view name_in(const Names& names, Value value) {
  const auto at = static_cast<std::size_t>(value);
  return at < names.size() ? names[at] : "?";
}

}  // namespace

std::string_view to_string(Zone zone) {
  return zone < Zone::kCount ? kZoneRows[static_cast<std::size_t>(zone)].name : "?";
}
std::string_view to_string(ZoneKind kind) {
  return name_in(kKindNames, kind);
}
std::string_view to_string(Counter counter) {
  return name_in(kCounterNames, counter);
}
std::string_view to_string(Owner owner) {
  return name_in(kOwnerNames, owner);
}
std::string_view to_string(Pass pass) {
  return name_in(kPassNames, pass);
}
ZoneKind kind_of(Zone zone) {
  return zone < Zone::kCount ? kZoneRows[static_cast<std::size_t>(zone)].kind : kOther;
}
bool is_matmul(Zone zone) {
  return zone >= Zone::kQkv && zone <= Zone::kMatmul;
}

}  // namespace butterfly::trace
