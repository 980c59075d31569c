// From an instruction set to its kernels. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/machine/isa.h"

namespace butterfly {

/// The kernels of `isa`, which must be among supported_isas(). At the first use a set is compared with the reference on
/// this machine (self_check.h); in place of one that differs there is the next slower one that does not, and the log
/// says so.
const Kernels& kernels_for(Isa isa);

/// The same without that comparison, for tests; its matmuls stay its own.
const Kernels& unchecked_kernels(Isa isa);

/// Rows of a matmul whose fastest kernel may be another one: one waits for its weights whichever multiplies, few (2 to
/// 15) fill no tile of 16, many do.
enum class RowClass : std::uint8_t { kOne, kFew, kMany };
inline constexpr int kRowClasses = 3;
constexpr RowClass row_class(long rows) {
  constexpr long kTileOfRows = 16;
  if (rows >= kTileOfRows) return RowClass::kMany;
  return rows == 1 ? RowClass::kOne : RowClass::kFew;
}

/// From now on kernels_for(isa) multiplies with weights of `type`, where rows are of that class, as kernels_for(by)
/// does now: all give the same bits, whichever is the fastest (rates/matmul_choice.h).
void choose_matmul(Isa isa, PackedType type, RowClass rows, Isa by);

/// Whose kernel does that; `isa` itself before a choice, unless it differs from the reference.
Isa matmul_isa(Isa isa, PackedType type, RowClass rows);

/// From now on matmuls of few rows ask for their weights that way: no bit shows it.
void choose_prefetch(Prefetch prefetch);
Prefetch chosen_prefetch();

/// `isa` or the next slower one of this machine in which `difference` finds nothing.
Isa agreeing_isa(Isa isa, const std::function<std::string_view(Isa)>& difference);

}  // namespace butterfly
