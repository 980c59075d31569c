// Names of the choices in TransformerOptions.
#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <vector>

#include "butterfly/model/training/passes/transformer_options.h"

namespace butterfly {
namespace {

struct RecomputeName {
  Recompute value;
  std::string_view name;
};
constexpr std::array<RecomputeName, 3> kRecomputeNames{
    {{Recompute::kNone, "none"}, {Recompute::kSelective, "selective"}, {Recompute::kBlock, "block"}}};

struct FusionName {
  bool Fusion::*member;
  std::string_view name;
};
constexpr std::array<FusionName, 5> kFusionNames{{{&Fusion::qkv, "qkv"},
                                                  {&Fusion::swiglu, "swiglu"},
                                                  {&Fusion::attention, "attention"},
                                                  {&Fusion::cross_entropy, "cross_entropy"},
                                                  {&Fusion::adamw, "adamw"}}};

constexpr Fusion kNoFusion{.qkv = false, .swiglu = false, .attention = false, .cross_entropy = false, .adamw = false};

}  // namespace

std::string_view to_string(Recompute recompute) {
  for (const RecomputeName& known : kRecomputeNames) {
    if (known.value == recompute) return known.name;
  }
  return "?";
}

Result<Recompute> parse_recompute(std::string_view name) {
  for (const RecomputeName& known : kRecomputeNames) {
    if (known.name == name) return known.value;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "\"{}\" is no kind of recomputation; there are none, selective and block", name);
}

Result<Fusion> parse_fusion(const std::string& list) {
  if (list == "all") return Fusion{};
  Fusion fusion = kNoFusion;
  if (list == "none") return fusion;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string_view name = std::string_view(list).substr(at, end - at);
    bool known = false;
    for (const FusionName& candidate : kFusionNames) {
      if (candidate.name == name) fusion.*candidate.member = known = true;
    }
    if (!known) {
      return make_error(ErrorCode::kInvalidArgument, "\"{}\" is no fusion; there are {}, or all, or none", name,
                        to_string(Fusion{}));
    }
    at = end + 1;
  }
  return fusion;
}

std::string to_string(const Fusion& fusion) {
  std::vector<std::string_view> names;
  for (const FusionName& known : kFusionNames) {
    if (fusion.*known.member) names.push_back(known.name);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ","));
}

}  // namespace butterfly
