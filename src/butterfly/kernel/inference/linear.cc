#include "butterfly/kernel/inference/linear.h"

#include <algorithm>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"
#include "butterfly/machine/topology.h"
#include "butterfly/tensor/sub_blocks.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

struct alignas(64) ScratchLine {
  unsigned char bytes[64];
};

/// This thread's, kept for the next matmul.
unsigned char* scratch_of(long bytes) {
  thread_local std::vector<ScratchLine> lines;
  const auto wanted = (static_cast<std::size_t>(bytes) + sizeof(ScratchLine) - 1) / sizeof(ScratchLine);
  if (lines.size() < wanted) lines.resize(wanted);
  return lines.empty() ? nullptr : lines.front().bytes;
}

/// Bytes of scratch that are worth their while: halves are unpacked where the floats stay in the second-level cache,
/// for a number of rows that makes it little of the time.
long useful_scratch(PackedType type, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kRowsLeast = 32;
  const long bytes = scratch_bytes(type, cols);
  if (!is_halves(type)) return rows > 1 ? bytes : 0;
  const bool fit = static_cast<std::uint64_t>(bytes) <= l2_bytes() / 4 * 3;
  return fit && rows >= kRowsLeast ? bytes : 0;
}

/// Panels of jobs that multiply the same rows with the same weights.
void run_panels(const Kernels& kernels, std::span<const LinearJob> jobs, std::int64_t begin, std::int64_t end) {
  const LinearJob& job = jobs.front();
  const PackedMatrix& w = *job.weights;
  LinearArgs args;
  args.type = w.packed_as();
  args.weights = w.data();
  args.panel_stride = w.panel_stride();
  args.cols = w.cols();
  args.out_rows = w.rows();
  args.panel_begin = begin;
  args.panel_end = end;
  args.x = job.x->values;
  args.x_stride = job.x->cols;
  args.xq = reinterpret_cast<const signed char*>(job.x->quants);
  args.x_scales = job.x->scales;
  args.x_sums = job.x->sums;
  args.nibble_quants = reinterpret_cast<const signed char*>(nibble_quants(w.type()).data());
  args.rows = job.x->rows;
  args.prefetch = chosen_prefetch();
  const long scratch = useful_scratch(args.type, args.rows, args.cols);
  const long whole_lines = (scratch + kCacheLine - 1) / kCacheLine * kCacheLine;
  const long gathered = gathered_bytes(args.type, args.rows, args.cols);
  unsigned char* const memory = whole_lines + gathered > 0 ? scratch_of(whole_lines + gathered) : nullptr;
  args.scratch = scratch > 0 ? memory : nullptr;
  args.gathered = gathered > 0 ? memory + whole_lines : nullptr;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    args.sums[i] = {.slice_begin = jobs[i].slices.data(),
                    .slices = jobs[i].slices.count(),
                    .bias = jobs[i].bias,
                    .residual = jobs[i].residual,
                    .y = jobs[i].y,
                    .y_stride = jobs[i].y_stride == 0 ? w.rows() : jobs[i].y_stride};
  }
  args.sum_count = static_cast<int>(jobs.size());
  kernels.linear(args);
}

/// Jobs at the front that multiply the same rows with the same weights: a tensor group's, of one slice after the other.
std::size_t jobs_of_same_weights(std::span<const LinearJob> jobs) {
  std::size_t count = 1;
  const std::size_t most = std::min<std::size_t>(jobs.size(), kLinearSums);
  while (count < most && jobs[count].weights == jobs.front().weights && jobs[count].x == jobs.front().x) ++count;
  return count;
}

/// Activations are read and written once. Matmuls of the same rows count as one with the outputs of all; those of
/// other rows, as experts have, add their rows.
trace::Work work_of(std::span<const LinearJob> jobs, std::uint64_t flops, std::uint64_t weight_bytes) {
  const LinearJob& first = jobs.front();
  trace::Work work{.in = static_cast<std::uint32_t>(first.x->cols),
                   .flops = flops,
                   .bytes = weight_bytes,
                   .type = static_cast<std::uint8_t>(first.weights->type())};
  const ActivationRows* x = nullptr;
  const PackedMatrix* weights = nullptr;
  for (const LinearJob& job : jobs) {
    work.bytes += static_cast<std::uint64_t>(job.x->rows * job.weights->rows()) * sizeof(float) *
                  (job.residual == nullptr ? 1 : 2);
    if (job.x == first.x && job.weights != weights) work.out += static_cast<std::uint32_t>(job.weights->rows());
    weights = job.weights;
    if (job.x == x) continue;
    x = job.x;
    work.number += static_cast<std::uint32_t>(x->rows);
    const auto floats = static_cast<std::uint64_t>(x->rows * x->cols) * sizeof(float);
    work.bytes += job.weights->quantised() ? quantised_bytes(x->rows, x->cols) : floats;
  }
  return work;
}

}  // namespace

void RowForm::add(const PackedMatrix& reader) {
  quantised |= reader.quantised();
  grouped |= reader.packed_as() == PackedType::kInt8;
}

RowForm row_form(std::initializer_list<const PackedMatrix*> readers) {
  RowForm form;
  for (const PackedMatrix* reader : readers) form.add(*reader);
  return form;
}

RowForm row_form(const PackedMatrix& reader, const SliceBorders& slices, const SliceRange& held) {
  RowForm form{.slices = slices, .held = held};
  form.add(reader);
  return form;
}

void quantize_activation_row(const Kernels& kernels, const ActivationRows& x, std::int64_t row, const RowForm& form) {
  const std::int64_t blocks = x.cols / kQuantBlock;
  const auto quantize = [&](std::int64_t begin, std::int64_t end, std::int64_t group) {
    const std::int64_t at = row * x.cols + begin;
    const std::int64_t block = row * blocks + begin / kQuantBlock;
    kernels.quantize_row(x.values + at, end - begin, group, reinterpret_cast<signed char*>(x.quants) + at,
                         x.scales + block, x.sums + block);
  };
  if (!form.grouped) return quantize(0, x.cols, kQuantBlock);
  if (form.slices.count() == 0) return quantize(0, x.cols, kQuantGroup);
  const int first = form.slices.at(form.held.first);
  BF_CHECK(form.slices.at(form.held.last) - first == x.cols, "rows have the columns of their slices");
  for (int slice = form.held.first; slice < form.held.last; ++slice) {
    const int begin = form.slices.at(slice) - first, end = form.slices.at(slice + 1) - first;
    if (begin < end) quantize(begin, end, kQuantGroup);
  }
}

void run_linear(const Kernels& kernels, ThreadTeam& team, std::span<const LinearJob> jobs, trace::Zone zone) {
  trace::Scope scope(zone);
  run_linear(kernels, team, jobs, scope);
}

void run_linear(const Kernels& kernels, ThreadTeam& team, std::span<const LinearJob> jobs, trace::Scope& scope) {
  // Jobs may have slices of different widths, and experts have different rows; reading weights takes as long as
  // computing a few rows.
  constexpr std::int64_t kRowsOfReading = 4;
  const auto cost_of_panel = [](const LinearJob& job) { return job.slices.cols() * (job.x->rows + kRowsOfReading); };
  std::int64_t work = 0;
  std::uint64_t flops = 0;
  std::uint64_t bytes = 0;
  for (const LinearJob& job : jobs) {
    BF_CHECK(job.x->cols == job.weights->cols() && job.slices.cols() > 0);
    const auto cols = static_cast<std::uint64_t>(job.slices.cols());
    work += job.weights->panels() * cost_of_panel(job);
    flops += 2 * static_cast<std::uint64_t>(job.x->rows * job.weights->rows()) * cols;
    bytes += job.weights->bytes() * cols / static_cast<std::uint64_t>(job.weights->cols());
  }
  trace::add(trace::Counter::kKernelFlops, flops);
  trace::add(trace::Counter::kKernelWeightBytes, bytes);
  if (scope.on()) scope.set_work(work_of(jobs, flops, bytes));
  team.run([&](int member) {
    std::span<const LinearJob> left = jobs;
    const WorkRange mine = split_work(work, member, team.size());
    std::int64_t first = 0;
    while (!left.empty()) {
      const auto together = left.first(jobs_of_same_weights(left));
      left = left.subspan(together.size());
      const std::int64_t panels = together.front().weights->panels();
      std::int64_t cost = 0;
      for (const LinearJob& job : together) cost += cost_of_panel(job);
      const std::int64_t begin = std::clamp<std::int64_t>((mine.begin - first) / cost, 0, panels);
      const std::int64_t end = std::clamp<std::int64_t>((mine.end - first) / cost, 0, panels);
      if (begin < end) run_panels(kernels, together, begin, end);
      first += panels * cost;
    }
  });
  scope.end();
}

}  // namespace butterfly
