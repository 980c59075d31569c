// What makes matmuls the fastest on this very machine: for each type of weights the instruction set, since a CPU that
// has more instructions is not faster with all of them, and how few rows ask for weights ahead. All give the same bits,
// so no choice ever shows in a result. Thread-safe.
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

/// How few rows ask for weights ahead, where it is not the standard way.
struct PrefetchChoice {
  Prefetch prefetch = Prefetch::kTwoSteps;
  double gain = 1.0;  // how many times as fast as the standard way

  bool operator==(const PrefetchChoice&) const = default;
};

struct MachineChoices {
  std::vector<MatmulChoice> matmuls;
  PrefetchChoice prefetch;

  bool operator==(const MachineChoices&) const = default;
};

/// Measures now, on one thread, a fraction of a second: each type that weights have, packed, 8 and 128 rows; one row of
/// weights that no cache holds. Where nothing else is at least 5 % faster there is no choice.
MachineChoices measure_choices(Isa isa);

/// The choices of an earlier call on this host, else measures and keeps them. None with BUTTERFLY_TUNE=off, and where
/// there is no cache: who starts often without one would measure each time.
MachineChoices remembered_choices(Isa isa);

/// kernels_for(isa) with remembered_choices(isa) made, which happens at the first call.
const Kernels& tuned_kernels(Isa isa);

std::string_view to_string(Prefetch prefetch);

/// The cache file's text and back; nothing where it is not such a text, whole.
std::string serialize(const MachineChoices& choices);
std::optional<MachineChoices> parse_choices(const std::string& text);

}  // namespace butterfly
