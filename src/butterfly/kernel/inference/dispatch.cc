#include "butterfly/kernel/inference/dispatch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "butterfly/base/check.h"
#include "butterfly/base/log.h"
#include "butterfly/kernel/inference/self_check.h"

namespace butterfly {
namespace {

#ifdef __x86_64__
const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels table = kAvx512Kernels;
    table.name = "amx";
    table.linear = linear_amx;
    return table;
  }();
  return kernels;
}
#endif

constexpr std::size_t kPackedTypes = static_cast<std::size_t>(PackedType::kIQ4_XS) + 1;

/// Of each instruction set that was asked for, each type and class of rows: whose matmul computes it.
std::array<std::array<std::array<std::atomic<Isa>, kRowClasses>, kPackedTypes>, kAllIsas.size()> chosen_sets;

std::atomic<Isa>& chosen_set(Isa isa, PackedType type, RowClass rows) {
  return chosen_sets[static_cast<std::size_t>(isa)][static_cast<std::size_t>(type)][static_cast<std::size_t>(rows)];
}

std::atomic<Prefetch> prefetch_in_use{Prefetch::kTwoSteps};

template <Isa isa>
void chosen_linear(const LinearArgs& args) {
  unchecked_kernels(chosen_set(isa, args.type, row_class(args.rows)).load(std::memory_order_relaxed)).linear(args);
}

constexpr std::array kChosenLinear{chosen_linear<Isa::kReference>, chosen_linear<Isa::kAvx2>,
                                   chosen_linear<Isa::kAvx512>, chosen_linear<Isa::kAmx>};

}  // namespace

const Kernels& unchecked_kernels(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceKernels;
#ifdef __x86_64__
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
    case Isa::kAmx:
      return amx_kernels();
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "no kernels were built for this instruction set");
}

Isa agreeing_isa(Isa isa, const std::function<std::string_view(Isa)>& difference) {
  const std::vector<Isa>& isas = supported_isas();
  for (auto at = std::find(isas.begin(), isas.end(), isa); at != isas.begin() && at != isas.end(); --at) {
    const std::string_view what = difference(*at);
    if (what.empty()) return *at;
    log().warn("{} of {} differs from the reference on this machine: {} is used instead", what, to_string(*at),
               to_string(*(at - 1)));
  }
  return Isa::kReference;
}

const Kernels& kernels_for(Isa isa) {
  static std::array<std::once_flag, kAllIsas.size()> once;
  static std::array<Kernels, kAllIsas.size()> tables;
  const auto index = static_cast<std::size_t>(isa);
  std::call_once(once[index], [&] {
    const Isa checked =
        agreeing_isa(isa, [](Isa each) { return first_difference(unchecked_kernels(each), kReferenceKernels); });
    for (auto& of_type : chosen_sets[index]) {
      for (auto& of_rows : of_type) of_rows = checked;
    }
    tables[index] = unchecked_kernels(checked);
    tables[index].linear = kChosenLinear[index];
  });
  return tables[index];
}

void choose_matmul(Isa isa, PackedType type, RowClass rows, Isa by) {
  kernels_for(isa);  // its own matmuls come first
  chosen_set(isa, type, rows) = matmul_isa(by, type, rows);
}

void choose_prefetch(Prefetch prefetch) {
  prefetch_in_use.store(prefetch, std::memory_order_relaxed);
}

Prefetch chosen_prefetch() {
  return prefetch_in_use.load(std::memory_order_relaxed);
}

Isa matmul_isa(Isa isa, PackedType type, RowClass rows) {
  kernels_for(isa);
  return chosen_set(isa, type, rows);
}

}  // namespace butterfly
