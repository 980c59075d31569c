// Which instruction set's matmul is the fastest on this very machine, for each type of weights: a CPU that has more
// instructions is not faster with all of them. All give the same bits, so the choice never shows in a result.
// Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// Matmuls of such weights and rows are faster with `isa` than with the instruction set that was asked for.
struct MatmulChoice {
  DType type = DType::kF32;
  RowClass rows = RowClass::kMany;  // kFew or kMany
  Isa isa = Isa::kReference;
  double gain = 1.0;  // how many times as fast

  bool operator==(const MatmulChoice&) const = default;
};

/// Measures now, on one thread, a fraction of a second: each type that weights have, packed, 8 and 128 rows. Where no
/// set before `isa` is at least 5 % faster there is no choice.
std::vector<MatmulChoice> measure_choices(Isa isa);

/// The choices of an earlier call on this host, else measures and keeps them. None with BUTTERFLY_TUNE=off, and where
/// there is no cache: who starts often without one would measure each time.
std::vector<MatmulChoice> remembered_choices(Isa isa);

/// kernels_for(isa) with remembered_choices(isa) made, which happens at the first call.
const Kernels& tuned_kernels(Isa isa);

/// The cache file's text and back; nothing where it is not such a text, whole.
std::string serialize(const std::vector<MatmulChoice>& choices);
std::optional<std::vector<MatmulChoice>> parse_choices(const std::string& text);

}  // namespace butterfly
