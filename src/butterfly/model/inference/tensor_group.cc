#include "butterfly/model/inference/tensor_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

// Up to here a message costs about its latency, and one exchange of everything beats two of a part.
#ifdef BUTTERFLY_TINY
constexpr std::int64_t kDirectBytesMax = 256;
#else
constexpr std::int64_t kDirectBytesMax = 32 * 1024;
#endif

/// What a member says of itself before a step, at the head of its first message.
struct Readiness {
  std::uint32_t failed = 0;
  std::uint32_t code = 0;
  std::array<char, 120> text{};  // the error's, cut
};
static_assert(sizeof(Readiness) == 128);

ByteSpan bytes_of(const float* values, std::int64_t count) {
  return {reinterpret_cast<const std::byte*>(values), static_cast<std::size_t>(count) * sizeof(float)};
}
MutableByteSpan bytes_of(float* values, std::int64_t count) {
  return {reinterpret_cast<std::byte*>(values), static_cast<std::size_t>(count) * sizeof(float)};
}

Readiness readiness_of(const Status& status) {
  Readiness readiness;
  if (status) return readiness;
  readiness.failed = 1;
  readiness.code = static_cast<std::uint32_t>(status.error().code);
  const std::size_t length = std::min(status.error().message.size(), readiness.text.size());
  std::memcpy(readiness.text.data(), status.error().message.data(), length);
  return readiness;
}

Status status_of(const Readiness& readiness, int member) {
  if (readiness.failed == 0) return {};
  const bool known = readiness.code <= static_cast<std::uint32_t>(ErrorCode::kCancelled);
  const auto code = known ? static_cast<ErrorCode>(readiness.code) : ErrorCode::kProtocol;
  const std::size_t length = strnlen(readiness.text.data(), readiness.text.size());
  return make_error(code, "member {} of the tensor group: {}", member, std::string_view(readiness.text.data(), length));
}

trace::Zone zone_of(DividedMatmul matmul) {
  if (matmul == DividedMatmul::kAttentionOutput) return trace::Zone::kAttentionOutput;
  return matmul == DividedMatmul::kCrossOutput ? trace::Zone::kCross : trace::Zone::kDown;
}

}  // namespace

TensorGroup::TensorGroup(const ModelConfig& config, const std::vector<HeldSlices>& slices, int rank,
                         ExchangeFunction exchange)
    : model_dim_(config.model_dim),
      vocab_(config.vocab),
      rank_(rank),
      exchange_(std::move(exchange)),
      to_(slices.size()),
      from_(slices.size()),
      received_(slices.size()) {
  HeldSlices before = HeldSlices::none();
  std::vector<SliceRange> runs, expert_runs;
  for (const HeldSlices& held : slices) {
    BF_CHECK(held.follows(before) && !held.empty(), "the members' slices follow each other");
    before = held;
    shards_.push_back(shard_of(config, held));
    runs.push_back(held.slices());
    expert_runs.push_back(held.experts);
  }
  BF_CHECK(before.ends() && rank >= 0 && rank < size(), "the members have every slice");
  attention_ = sums_of(attention_slices(config), runs);
  mlp_ = sums_of(mlp_slices(config), runs);
  shared_ = sums_of(shared_slices(config), runs);
  experts_ = sums_of(expert_slices(config), expert_runs);
}

TensorGroup::Sums TensorGroup::sums_of(const SliceBorders& borders, std::span<const SliceRange> runs) {
  Sums sums;
  sums.borders = borders;
  for (const SliceRange& run : runs) {
    std::vector<SliceRange> nodes = subtrees(run);
    std::erase_if(nodes, [&](const SliceRange& node) { return borders.at(node.first) == borders.at(node.last); });
    sums.nodes_max = std::max(sums.nodes_max, static_cast<std::int64_t>(nodes.size()));
    sums.nodes.push_back(std::move(nodes));
  }
  return sums;
}

Status TensorGroup::exchange() {
  to_[static_cast<std::size_t>(rank_)] = {};
  from_[static_cast<std::size_t>(rank_)] = {};
  trace::Work work{.number = static_cast<std::uint32_t>(size())};
  for (const ByteSpan bytes : to_) work.bytes += bytes.size();
  for (const MutableByteSpan bytes : from_) work.bytes += bytes.size();
  const trace::Scope scope(trace::Zone::kGroupExchange, work);
  return exchange_(to_, from_);
}

Result<Status> TensorGroup::begin_step(Arena& arena, const Status& ready, std::span<const TokenId> tokens, float* x) {
  const auto rows_of = [&](const Shard& owner) {
    return std::ranges::count_if(tokens, [&](TokenId token) { return owner.vocab.contains(token.value); });
  };
  const auto dim = static_cast<std::size_t>(model_dim_);
  const auto message = [&](const Shard& owner) {
    return arena.allocate(sizeof(Readiness) + static_cast<std::size_t>(rows_of(owner)) * dim * sizeof(float));
  };
  // Calls visit(row of x, its bytes in the message) for the rows that `owner` has.
  const auto visit_rows = [&](const Shard& owner, std::byte* bytes, const auto& visit) {
    bytes += sizeof(Readiness);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      if (!owner.vocab.contains(tokens[row].value)) continue;
      visit(x + row * dim, bytes);
      bytes += dim * sizeof(float);
    }
  };
  BF_ASSIGN_OR_RETURN(const MutableByteSpan mine, message(shard()));
  const Readiness readiness = readiness_of(ready);
  std::memset(mine.data(), 0, ready ? 0 : mine.size());  // nothing else can be told
  std::memcpy(mine.data(), &readiness, sizeof(readiness));
  if (ready) {
    visit_rows(shard(), mine.data(),
               [&](const float* row, std::byte* bytes) { std::memcpy(bytes, row, dim * sizeof(float)); });
  }
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    to_[r] = mine;
    if (static_cast<int>(r) == rank_) continue;
    BF_ASSIGN_OR_RETURN(from_[r], message(shards_[r]));
  }
  BF_TRY(exchange());
  for (int member = 0; member < size(); ++member) {
    Readiness said = readiness;
    if (member != rank_) std::memcpy(&said, from_[static_cast<std::size_t>(member)].data(), sizeof(said));
    if (Status status = status_of(said, member); !status) return status;
  }
  for (int member = 0; member < size(); ++member) {
    if (member == rank_) continue;
    visit_rows(shard(member), from_[static_cast<std::size_t>(member)].data(),
               [&](float* row, const std::byte* bytes) { std::memcpy(row, bytes, dim * sizeof(float)); });
  }
  return Status{};
}

const TensorGroup::Sums& TensorGroup::sums_of(DividedMatmul matmul) const {
  switch (matmul) {
    case DividedMatmul::kAttentionOutput:
    case DividedMatmul::kCrossOutput:
      return attention_;
    case DividedMatmul::kSharedDown:
      return shared_;
    default:
      return mlp_;
  }
}

Status TensorGroup::add_matmul(const Compute& compute, DividedMatmul matmul, const PackedMatrix& weights,
                               const float* bias, const ActivationRows& x, float* y) {
  const Sums& sums = sums_of(matmul);
  const auto rank = static_cast<std::size_t>(rank_);
  const std::vector<SliceRange>& nodes = sums.nodes[rank];
  const auto count = static_cast<std::int64_t>(nodes.size());
  trace::Scope scope(zone_of(matmul));
  BF_ASSIGN_OR_RETURN(const auto mine,
                      compute.arena->allocate_array<float>(static_cast<std::uint64_t>(x.rows * count * model_dim_)));
  received_[rank] = mine.data();
  std::array<LinearJob, kLinearSums> jobs;
  BF_CHECK(nodes.size() <= jobs.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const SliceBorders slices = sums.borders.node(nodes[i], sums.borders.at(shard().slices.first));
    jobs[i] = {.weights = &weights,
               .x = &x,
               .slices = slices,
               .y = mine.data() + static_cast<std::int64_t>(i) * model_dim_,
               .y_stride = count * model_dim_};
  }
  if (count > 0) {
    run_linear(*compute.kernels, *compute.team, std::span(jobs).first(nodes.size()), scope);
  } else {
    scope.drop();
  }
  return add_sums(compute, sums, x.rows, bias, y);
}

Status TensorGroup::add_experts(const Compute& compute, std::int64_t rows, const FillSums& fill, const float* zeros,
                                float* y) {
  const auto rank = static_cast<std::size_t>(rank_);
  const std::vector<SliceRange>& nodes = experts_.nodes[rank];
  const auto count = static_cast<std::uint64_t>(rows) * nodes.size() * static_cast<std::uint64_t>(model_dim_);
  BF_ASSIGN_OR_RETURN(const auto mine, compute.arena->allocate_array<float>(count));
  received_[rank] = mine.data();
  if (!nodes.empty()) BF_TRY(fill(nodes, mine.data()));
  return add_sums(compute, experts_, rows, zeros, y);
}

/// y += what the members' sums add up to, of which this member has its own.
Status TensorGroup::add_sums(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias, float* y) {
  const std::int64_t message_bytes = rows * sums.nodes_max * model_dim_ * static_cast<std::int64_t>(sizeof(float));
  const bool direct = message_bytes <= kDirectBytesMax || rows < size();
  return direct ? add_everywhere(compute, sums, rows, bias, y) : add_at_owners(compute, sums, rows, bias, y);
}

Status add_divided_matmul(const Compute& compute, DividedMatmul matmul, const SliceBorders& slices,
                          const DividedWeights& weights, const ActivationRows& x, float* y) {
  if (compute.group != nullptr) {
    return compute.group->add_matmul(compute, matmul, *weights.weights, weights.bias, x, y);
  }
  const LinearJob job{weights.weights, &x, slices, weights.bias, y, y};
  run_linear(*compute.kernels, *compute.team, std::span(&job, 1), zone_of(matmul));
  return {};
}

Status TensorGroup::receive_sums(const Compute& compute, const Sums& sums, std::int64_t rows) {
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    const std::int64_t count = rows * static_cast<std::int64_t>(sums.nodes[r].size()) * model_dim_;
    BF_ASSIGN_OR_RETURN(const auto memory, compute.arena->allocate_array<float>(static_cast<std::uint64_t>(count)));
    received_[r] = memory.data();
    from_[r] = bytes_of(memory.data(), count);
  }
  return exchange();
}

Status TensorGroup::add_everywhere(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias,
                                   float* y) {
  const auto rank = static_cast<std::size_t>(rank_);
  const auto nodes = static_cast<std::int64_t>(sums.nodes[rank].size());
  std::ranges::fill(to_, bytes_of(std::as_const(received_[rank]), rows * nodes * model_dim_));
  BF_TRY(receive_sums(compute, sums, rows));
  fold_rows(compute, sums, rows, bias, y);
  return {};
}

Status TensorGroup::add_at_owners(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias,
                                  float* y) {
  const auto rank = static_cast<std::size_t>(rank_);
  const std::int64_t row_floats = static_cast<std::int64_t>(sums.nodes[rank].size()) * model_dim_;
  const WorkRange own = split_work(rows, rank_, size());
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    const WorkRange range = split_work(rows, static_cast<int>(r), size());
    to_[r] =
        bytes_of(std::as_const(received_[rank]) + range.begin * row_floats, (range.end - range.begin) * row_floats);
  }
  received_[rank] += own.begin * row_floats;
  BF_TRY(receive_sums(compute, sums, own.end - own.begin));
  float* own_y = y + own.begin * model_dim_;
  fold_rows(compute, sums, own.end - own.begin, bias, own_y);
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    const WorkRange range = split_work(rows, static_cast<int>(r), size());
    to_[r] = bytes_of(std::as_const(own_y), (own.end - own.begin) * model_dim_);
    from_[r] = bytes_of(y + range.begin * model_dim_, (range.end - range.begin) * model_dim_);
  }
  return exchange();
}

void TensorGroup::fold_rows(const Compute& compute, const Sums& sums, std::int64_t rows, const float* bias,
                            float* y) const {
  std::int64_t read = 0;
  for (const auto& nodes : sums.nodes) read += static_cast<std::int64_t>(nodes.size());
  const trace::Scope scope(trace::Zone::kReduceSlices, work_on_rows(rows, model_dim_, (read + 2) * model_dim_));
  for_each_row(compute, rows, kReductionSlices * model_dim_, [&](std::int64_t row) {
    std::array<float*, kReductionSlices> slices{};
    for (std::size_t r = 0; r < shards_.size(); ++r) {
      const std::vector<SliceRange>& nodes = sums.nodes[r];
      float* at = received_[r] + row * static_cast<std::int64_t>(nodes.size()) * model_dim_;
      for (const SliceRange& node : nodes) {
        slices[static_cast<std::size_t>(node.first)] = at;
        at += model_dim_;
      }
    }
    compute.kernels->fold(slices.data(), model_dim_, bias, y + row * model_dim_, y + row * model_dim_);
  });
}

Status TensorGroup::gather_logits(const Compute& compute, std::int64_t rows, const float* part,
                                  std::span<float> logits) {
  std::ranges::fill(to_, ByteSpan{});
  std::ranges::fill(from_, MutableByteSpan{});
  if (rank_ != 0) {
    to_[0] = bytes_of(part, rows * shard().vocab.size());
    return exchange();
  }
  // One row is received in its place; of several, each part has to be spread.
  for (std::size_t r = 1; r < shards_.size(); ++r) {
    const IndexRange& vocab = shards_[r].vocab;
    float* into = logits.data() + vocab.begin;
    if (rows > 1) {
      BF_ASSIGN_OR_RETURN(const auto memory,
                          compute.arena->allocate_array<float>(static_cast<std::uint64_t>(rows * vocab.size())));
      into = memory.data();
    }
    from_[r] = bytes_of(into, rows * vocab.size());
  }
  BF_TRY(exchange());
  if (rows == 1 && part == logits.data()) return {};
  const trace::Scope scope(trace::Zone::kGather, work_on_rows(rows, vocab_, 2 * vocab_));
  for (std::size_t r = 0; r < shards_.size(); ++r) {
    const IndexRange& vocab = shards_[r].vocab;
    const auto size = static_cast<std::size_t>(vocab.size());
    const float* values = r == 0 ? part : reinterpret_cast<const float*>(from_[r].data());
    if (size == 0 || (rows == 1 && values == logits.data() + vocab.begin)) continue;
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(logits.data() + row * vocab_ + vocab.begin, values + static_cast<std::size_t>(row) * size,
                  size * sizeof(float));
    }
  }
  return {};
}

}  // namespace butterfly
