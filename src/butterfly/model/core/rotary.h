// Rotary position frequencies and angles, in double precision with own exp, log, sin and cos: libm chooses its code by
// CPU, these give the same bits everywhere. Thread-safe.
#pragma once

#include <span>
#include <vector>

#include "butterfly/model/core/config.h"

namespace butterfly {

/// Radians per position of each pair: base^(-2i/dim), then the configured scaling; [dim / 2].
/// llama3 scaling: https://arxiv.org/abs/2407.21783 and the released reference: wavelengths above
/// original_context / low_freq_factor are stretched by `factor`, below original_context / high_freq_factor kept, and
/// between them interpolated.
std::vector<double> rotary_frequencies(const RopeConfig& config);

/// Of a whole model: those of its rope, then those of its local rope; what it does not have is left out.
std::vector<double> rotary_frequencies(const ModelConfig& config);

/// cos and sin of position * frequency; both [frequencies.size()]. position < 2^24.
void rotary_angles(std::span<const double> frequencies, std::int64_t position, std::span<float> cos,
                   std::span<float> sin);

namespace exact {
double log(double x);                             // x > 0 and normal
double exp(double x);                             // |x| <= 700
void exp(std::span<double> x);                    // of each, in its place: the same bits, several times as fast
void sincos(double x, double* sin, double* cos);  // |x| < 2^24
}  // namespace exact

}  // namespace butterfly
