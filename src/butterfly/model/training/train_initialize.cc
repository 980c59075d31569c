#include "butterfly/model/training/train_initialize.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "butterfly/model/core/rotary.h"

namespace butterfly {
namespace {

constexpr double kDeviation = 0.02;

/// The mixer of splitmix64 (https://prng.di.unimi.it/splitmix64.c) at place `counter` of the sequence `key`.
std::uint64_t random_bits(std::uint64_t key, std::uint64_t counter) {
  std::uint64_t z = key + (counter + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return random_bits(hash ^ random_bits(seed, 0), 0);
}

/// Elements 2 * pair and 2 * pair + 1 of a standard normal sequence, by the method of Box and Muller.
void normal_pair(std::uint64_t key, std::uint64_t pair, double* even, double* odd) {
  const std::uint64_t bits = random_bits(key, pair);
  const double u = (static_cast<double>(bits >> 32) + 1.0) * 0x1p-32;  // (0, 1]
  const double turn = static_cast<double>(bits & 0xffffffffu) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * exact::log(u));
  double sin = 0.0;
  double cos = 0.0;
  exact::sincos(2.0 * std::numbers::pi * turn, &sin, &cos);
  *even = radius * cos;
  *odd = radius * sin;
}

struct NormalValues {
  std::uint64_t key = 0;
  double deviation = 1.0;
};

void fill_normal(const NormalValues& normal, std::span<float> values, ThreadTeam& team) {
  const auto size = static_cast<long>(values.size());
  team.run([&](int member) {
    const WorkRange pairs = split_work((size + 1) / 2, member, team.size());
    for (long pair = pairs.begin; pair < pairs.end; ++pair) {
      double both[2];
      normal_pair(normal.key, static_cast<std::uint64_t>(pair), &both[0], &both[1]);
      for (long i = 0; i < 2 && 2 * pair + i < size; ++i) {
        values[static_cast<std::size_t>(2 * pair + i)] = static_cast<float>(normal.deviation * both[i]);
      }
    }
  });
}

bool adds_to_residual(std::string_view name) {
  const bool matrix = name.ends_with(".weight");
  return matrix && (name.ends_with(".attn_output.weight") || name.ends_with(".ffn_down.weight") ||
                    name.find(".ffn_down_exps.") != name.npos || name.find(".ffn_down_shexp.") != name.npos);
}

}  // namespace

void initialize_parameters(const ModelConfig& config, std::uint64_t seed, ParameterSet& parameters, ThreadTeam& team,
                           const std::function<void(const Parameter&)>& made) {
  for (const Parameter& parameter : parameters.list()) {
    const std::span<float> values = parameters.weight(parameter);
    const std::string_view name = parameter.name;
    if (name.ends_with("norm.weight")) {
      std::ranges::fill(values, 1.0f);
    } else if (name.ends_with(".bias")) {
      std::ranges::fill(values, 0.0f);
    } else {
      const double residual = adds_to_residual(name) ? 1.0 / std::sqrt(2.0 * config.layers) : 1.0;
      fill_normal({.key = key_of(seed, name), .deviation = kDeviation * residual}, values, team);
    }
    if (made) made(parameter);
  }
}

}  // namespace butterfly
