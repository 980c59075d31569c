#include "butterfly/model/format/gguf/gguf_experts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_writer.h"

namespace butterfly {
namespace {

constexpr std::string_view kInfix = "_exps.";

/// What the name of an architecture stands for.
struct ExpertsFamily {
  std::string_view name;
  MoeConfig::Scores scores = MoeConfig::Scores::kSoftmax;
  bool renormalise = false;
  float epsilon = 0.0f;
  bool says_all = false;  // scores, renormalisation, scale, groups and dense layers are keys
  bool shared_gate = false;
  bool biases = false;
  float swiglu_limit = 0.0f;
};
constexpr ExpertsFamily kExpertsFamilies[] = {
    {.name = "llama", .renormalise = true},
    {.name = "qwen2moe", .shared_gate = true},
    {.name = "qwen3moe", .renormalise = true},
    {.name = "olmoe"},
    {.name = "granitemoe", .scores = MoeConfig::Scores::kSoftmaxOfChosen},
    {.name = "gpt-oss", .scores = MoeConfig::Scores::kSoftmaxOfChosen, .biases = true, .swiglu_limit = 7.0f},
    {.name = "glm4moe", .scores = MoeConfig::Scores::kSigmoid, .epsilon = 1e-20f, .says_all = true},
    {.name = "deepseek2", .epsilon = 1e-20f, .says_all = true},
};

const ExpertsFamily* find_experts_family(std::string_view name) {
  const auto* found = std::ranges::find(kExpertsFamilies, name, &ExpertsFamily::name);
  return found == std::end(kExpertsFamilies) ? nullptr : found;
}

// Numbers of expert_gating_func.
constexpr int kGatingSoftmax = 1;
constexpr int kGatingSigmoid = 2;

Status read_router(const GgufKeys& keys, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  const int usual = moe.scores == MoeConfig::Scores::kSigmoid ? kGatingSigmoid : kGatingSoftmax;
  BF_ASSIGN_OR_RETURN(const int gating, keys.integer_or("expert_gating_func", usual));
  if (gating != kGatingSoftmax && gating != kGatingSigmoid) {
    return make_error(ErrorCode::kUnsupported, "{}: {} is {}, supported are {} (softmax) and {} (sigmoid)",
                      keys.file().source(), keys.full("expert_gating_func"), gating, kGatingSoftmax, kGatingSigmoid);
  }
  const bool sigmoid = gating == kGatingSigmoid;
  moe.scores = sigmoid ? MoeConfig::Scores::kSigmoid : MoeConfig::Scores::kSoftmax;
  moe.group_score = sigmoid ? MoeConfig::GroupScore::kTwoLargest : MoeConfig::GroupScore::kLargest;
  BF_ASSIGN_OR_RETURN(moe.renormalise, keys.flag_or("expert_weights_norm", GgufKeys::Default::kFalse));
  if (!sigmoid) moe.renormalise_epsilon = 0.0f;
  BF_ASSIGN_OR_RETURN(moe.weight_scale, keys.number_or("expert_weights_scale", 1.0f));
  if (moe.weight_scale == 0.0f) moe.weight_scale = 1.0f;
  BF_ASSIGN_OR_RETURN(moe.groups, keys.integer_or("expert_group_count", 1));
  BF_ASSIGN_OR_RETURN(moe.groups_used, keys.integer_or("expert_group_used_count", 1));
  moe.groups = std::max(moe.groups, 1);
  moe.groups_used = std::max(moe.groups_used, 1);
  BF_ASSIGN_OR_RETURN(const int dense, keys.integer_or("leading_dense_block_count", 0));
  const int layers = std::min(config.layers, kLayersMax);
  for (int layer = 0; layer < layers && dense > 0; ++layer) moe.layers.push_back(layer < dense ? 0 : 1);
  const std::string last = fmt::format("blk.{}.exp_probs_b.bias", config.layers - 1);
  moe.choice_bias = keys.file().find_tensor(last) != nullptr;
  return {};
}

Status read_shared(const GgufKeys& keys, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  BF_ASSIGN_OR_RETURN(const int count, keys.integer_or("expert_shared_count", 0));
  if (count > 0 && moe.ff_dim > INT_MAX / count) {
    return make_error(ErrorCode::kBadData, "{}: {} shared experts of width {} are too many", keys.file().source(),
                      count, moe.ff_dim);
  }
  BF_ASSIGN_OR_RETURN(moe.shared_ff_dim, keys.integer_or("expert_shared_feed_forward_length", count * moe.ff_dim));
  return {};
}

int leading_dense(const MoeConfig& moe) {
  const auto first = std::ranges::find(moe.layers, 1);
  return static_cast<int>(first - moe.layers.begin());
}

Status check_router(const ExpertsFamily& family, const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.router_bias != family.biases || moe.expert_bias != family.biases) {
    return gguf_cannot_have(config, "these biases of router and experts");
  }
  if (moe.swiglu_limit != family.swiglu_limit) return gguf_cannot_have(config, "this limit of the experts' activation");
  if (moe.shared_gate != (family.shared_gate && moe.shared_ff_dim > 0)) {
    return gguf_cannot_have(config, "this gate of the shared expert");
  }
  if (std::ranges::count(moe.layers, 0) != leading_dense(moe)) return gguf_cannot_have(config, "these dense layers");
  if (family.says_all) {
    const bool chosen = moe.scores == MoeConfig::Scores::kSoftmaxOfChosen;
    return chosen ? gguf_cannot_have(config, "a softmax over the chosen experts") : Status{};
  }
  if (moe.scores != family.scores || moe.renormalise != family.renormalise) {
    return gguf_cannot_have(config, "these weights of experts");
  }
  if (moe.weight_scale != 1.0f) return gguf_cannot_have(config, "a scale of the experts' weights");
  if (moe.groups != 1 || moe.choice_bias)
    return gguf_cannot_have(config, "groups of experts or a bias of their choice");
  if (!moe.layers.empty() && leading_dense(moe) > 0) return gguf_cannot_have(config, "these dense layers");
  return {};
}

}  // namespace

Status read_gguf_experts(const GgufKeys& keys, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  BF_ASSIGN_OR_RETURN(moe.experts, keys.integer_or("expert_count", 0));
  if (moe.experts == 0) return {};
  const ExpertsFamily* family = find_experts_family(config.architecture);
  if (family == nullptr) {
    std::vector<std::string_view> known;
    for (const ExpertsFamily& f : kExpertsFamilies) known.push_back(f.name);
    return make_error(ErrorCode::kUnsupported,
                      "{}: has {} experts per block of architecture {}, supported are those of {}",
                      keys.file().source(), moe.experts, config.architecture, fmt::join(known, ", "));
  }
  BF_ASSIGN_OR_RETURN(moe.experts_used, keys.integer("expert_used_count"));
  BF_ASSIGN_OR_RETURN(moe.ff_dim, keys.integer_or("expert_feed_forward_length", config.ff_dim));
  moe.scores = family->scores;
  moe.renormalise = family->renormalise;
  moe.renormalise_epsilon = family->epsilon;
  moe.router_bias = moe.expert_bias = family->biases;
  moe.swiglu_limit = family->swiglu_limit;
  BF_TRY(read_shared(keys, config));
  moe.shared_gate = family->shared_gate && moe.shared_ff_dim > 0;
  return family->says_all ? read_router(keys, config) : Status{};
}

Status write_gguf_experts(const ModelConfig& config, GgufWriter& writer) {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0) return {};
  const ExpertsFamily* family = find_experts_family(config.architecture);
  if (family == nullptr) return gguf_cannot_have(config, "experts");
  BF_TRY(check_router(*family, config));
  const std::string prefix = config.architecture + ".";
  const auto integer = [&](const char* key, int value) {
    writer.add_integer(prefix + key, static_cast<std::uint32_t>(value));
  };
  integer("expert_count", moe.experts);
  integer("expert_used_count", moe.experts_used);
  integer("expert_feed_forward_length", moe.ff_dim);
  const bool counted = moe.shared_ff_dim % moe.ff_dim == 0 && !family->shared_gate;
  if (counted) integer("expert_shared_count", moe.shared_ff_dim / moe.ff_dim);
  if (!counted && moe.shared_ff_dim > 0) integer("expert_shared_feed_forward_length", moe.shared_ff_dim);
  if (!family->says_all) return {};
  integer("expert_gating_func", moe.scores == MoeConfig::Scores::kSigmoid ? kGatingSigmoid : kGatingSoftmax);
  writer.add_bool(prefix + "expert_weights_norm", moe.renormalise);
  writer.add_float(prefix + "expert_weights_scale", moe.weight_scale);
  integer("expert_group_count", moe.groups);
  integer("expert_group_used_count", moe.groups_used);
  integer("leading_dense_block_count", moe.layers.empty() ? 0 : leading_dense(moe));
  return {};
}

std::optional<ExpertTensor> expert_tensor(const std::string& canonical) {
  const std::size_t infix = canonical.find(kInfix);
  if (infix == std::string::npos) return std::nullopt;
  const std::size_t begin = infix + kInfix.size();
  const std::size_t end = canonical.find('.', begin);
  if (end == std::string::npos) return std::nullopt;
  ExpertTensor tensor;
  const char* last = canonical.data() + end;
  const auto [stop, error] = std::from_chars(canonical.data() + begin, last, tensor.expert);
  if (error != std::errc() || stop != last || tensor.expert < 0) return std::nullopt;
  tensor.name = canonical.substr(0, begin) + canonical.substr(end + 1);
  return tensor;
}

std::optional<std::string> expert_weight(const std::string& tensor, std::int64_t expert) {
  const std::size_t infix = tensor.find(kInfix);
  if (infix == std::string::npos) return std::nullopt;
  const std::size_t begin = infix + kInfix.size();
  return fmt::format("{}{}.{}", tensor.substr(0, begin), expert, tensor.substr(begin));
}

}  // namespace butterfly
