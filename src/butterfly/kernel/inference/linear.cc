#include "butterfly/kernel/inference/linear.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "butterfly/base/check.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/sub_blocks.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

/// What one thread's matmuls of many rows by float weights pack rows into (linear_blocks_inl.h); it stays for the next
/// one. Empty where there is no memory for it: they only take longer then.
std::span<float> scratch_of_thread(std::int64_t floats) {
  thread_local AlignedBuffer buffer;
  const auto bytes = static_cast<std::uint64_t>(floats) * sizeof(float);
  if (buffer.bytes() < bytes) {
    Result<AlignedBuffer> larger = AlignedBuffer::create(bytes);
    if (!larger) return {};
    buffer = std::move(*larger);
  }
  return {reinterpret_cast<float*>(buffer.data()), buffer.bytes() / sizeof(float)};
}

/// Floats of scratch for each row of a chunk.
std::int64_t scratch_of_row(const LinearJob& job) {
  std::int64_t floats = 6 * 2 * kPanel;  // sums
  for (int slice = 0; slice < job.slices.count(); ++slice) {
    floats += (job.slices.at(slice + 1) - job.slices.at(slice) + kLinearBlock - 1) / kLinearBlock * kLinearBlock;
  }
  return floats;
}

constexpr std::int64_t kTileRows = 12;  // that kernels take at once, at most

/// Rows that stay in the second-level cache beside the weights of a block, and the sums that wait; more than that where
/// few rows fit, since weights would be read again too often. Whole tiles.
std::int64_t rows_of_chunk(const LinearJob& job) {
  constexpr std::int64_t kFloats = 640 * 1024 / sizeof(float);
  constexpr std::int64_t kRowsMin = 48;
  return std::max(kFloats / scratch_of_row(job) / kTileRows * kTileRows, kRowsMin);
}

/// Outputs of some panels for some rows.
struct LinearPart {
  IndexRange rows;
  IndexRange panels;
};

void run_part(const Kernels& kernels, const LinearJob& job, const LinearPart& part) {
  const PackedMatrix& w = *job.weights;
  const std::int64_t blocks = job.x->cols / kQuantBlock;
  LinearArgs args;
  args.type = packed_type(w.type());
  args.weights = w.data();
  args.panel_stride = w.panel_stride();
  args.cols = w.cols();
  args.out_rows = w.rows();
  args.panel_begin = part.panels.begin;
  args.panel_end = part.panels.end;
  args.x_stride = job.x->cols;
  if (w.quantised()) {
    args.xq = reinterpret_cast<const signed char*>(job.x->quants) + part.rows.begin * job.x->cols;
    args.x_scales = job.x->scales + part.rows.begin * blocks;
    args.x_sums = job.x->sums + part.rows.begin * blocks;
  } else {
    args.x = job.x->values + part.rows.begin * job.x->cols;
  }
  args.nibble_quants = reinterpret_cast<const signed char*>(nibble_quants(w.type()).data());
  args.rows = part.rows.size();
  args.slice_begin = job.slices.data();
  args.slices = job.slices.count();
  args.bias = job.bias;
  args.y_stride = job.y_stride == 0 ? w.rows() : job.y_stride;
  args.y = job.y + part.rows.begin * args.y_stride;
  if (job.residual != nullptr) args.residual = job.residual + part.rows.begin * args.y_stride;
  constexpr std::int64_t kFewRows = 6;
  if (args.rows >= kFewRows && !w.quantised()) {
    const std::span<float> scratch = scratch_of_thread(scratch_of_row(job) * std::min(args.rows, rows_of_chunk(job)));
    args.scratch = scratch.data();
    args.scratch_floats = static_cast<long>(scratch.size());
  }
  kernels.linear(args);
}

/// Jobs at the front that multiply the same rows with the same weights: a tensor group's, of one slice after the other.
std::size_t jobs_of_same_weights(std::span<const LinearJob> jobs) {
  std::size_t count = 1;
  while (count < jobs.size() && jobs[count].weights == jobs.front().weights && jobs[count].x == jobs.front().x) ++count;
  return count;
}

/// Each panel's columns lie beside each other. Few rows, which wait for the weights, take them in this order: kernels
/// ask for memory ahead of them, which is only right where it comes next.
void run_together(const Kernels& kernels, std::span<const LinearJob> jobs, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kFewRows = 8;
  const bool in_turns = jobs.size() > 1 && jobs.front().x->rows <= kFewRows;
  const std::int64_t step = in_turns ? 1 : std::max<std::int64_t>(end - begin, 1);
  for (std::int64_t panel = begin; panel < end; panel += step) {
    for (const LinearJob& job : jobs) {
      run_part(kernels, job, {{0, job.x->rows}, {panel, std::min(panel + step, end)}});
    }
  }
}

/// One job of many rows, cut so that every member has several parts to take: one that is held up takes fewer. Parts are
/// chunks of rows first, since the panels of one share what is done for its rows.
class LinearParts {
 public:
  LinearParts(const LinearJob& job, int members) : rows_(job.x->rows), panels_(job.weights->panels()) {
    constexpr std::int64_t kPartsOfMember = 8;
    constexpr std::int64_t kPanelsMin = 16;
    row_parts_ = std::max<std::int64_t>((rows_ + rows_of_chunk(job) - 1) / rows_of_chunk(job), 1);
    if (members == 1) return;
    const std::int64_t wanted = (members * kPartsOfMember + row_parts_ - 1) / row_parts_;
    panel_parts_ = std::clamp<std::int64_t>(panels_ / kPanelsMin, 1, wanted);
  }

  std::int64_t count() const { return row_parts_ * panel_parts_; }

  LinearPart operator[](std::int64_t number) const {
    const std::int64_t row = number / panel_parts_;
    const std::int64_t panel = number % panel_parts_;
    const std::int64_t tiles = (rows_ + kTileRows - 1) / kTileRows;
    const auto row_at = [&](std::int64_t i) { return std::min(tiles * i / row_parts_ * kTileRows, rows_); };
    return {{row_at(row), row_at(row + 1)}, {panels_ * panel / panel_parts_, panels_ * (panel + 1) / panel_parts_}};
  }

 private:
  std::int64_t rows_;
  std::int64_t panels_;
  std::int64_t row_parts_ = 1;
  std::int64_t panel_parts_ = 1;
};

/// Members take parts of all jobs as they come to them.
void run_parts(const Kernels& kernels, ThreadTeam& team, std::span<const LinearJob> jobs) {
  std::atomic<std::int64_t> next{0};
  team.run([&](int) {
    std::int64_t first = 0;  // part of the job
    std::int64_t part = next++;
    for (const LinearJob& job : jobs) {
      const LinearParts parts(job, team.size());
      for (; part < first + parts.count(); part = next++) run_part(kernels, job, parts[part - first]);
      first += parts.count();
    }
  });
}

}  // namespace

void quantize_activation_row(const Kernels& kernels, const ActivationRows& x, std::int64_t row) {
  const std::int64_t blocks = x.cols / kQuantBlock;
  kernels.quantize_row(x.values + row * x.cols, x.cols, reinterpret_cast<signed char*>(x.quants) + row * x.cols,
                       x.scales + row * blocks, x.sums + row * blocks);
}

void run_linear(const Kernels& kernels, ThreadTeam& team, std::span<const LinearJob> jobs) {
  const trace::Scope scope(trace::Zone::kKernelMatmul, static_cast<std::uint32_t>(jobs.front().x->rows));
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
  constexpr std::int64_t kManyRows = 24;
  const bool many = std::ranges::all_of(jobs, [](const LinearJob& job) { return job.x->rows >= kManyRows; });
  if (many) return run_parts(kernels, team, jobs);
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
      run_together(kernels, together, begin, end);
      first += panels * cost;
    }
  });
}

}  // namespace butterfly
