#include <algorithm>
#include <array>
#include <memory>

#include "bench/kernels/kernel_case.h"
#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/machine/topology.h"
#include "butterfly/tensor/aligned_buffer.h"

namespace butterfly::app {
namespace {

constexpr std::array<int, 2> kHeadDims{64, 128};
constexpr std::array<int, 2> kQueryRows{1, kAttentionRows};

struct CacheKind {
  CacheType type;
  const char* name;
};
constexpr std::array<CacheKind, 3> kCacheKinds{
    {{CacheType::kF32, "f32"}, {CacheType::kF16, "f16"}, {CacheType::kQ8_0, "q8_0"}}};

/// One head of keys and values, and queries that read it. The memory holds the same byte everywhere, an ordinary number
/// in each type.
class AttentionHead {
 public:
  static Result<std::unique_ptr<AttentionHead>> create(CacheType type, int head_dim, int keys, int rows) {
    auto head = std::make_unique<AttentionHead>();
    const int pages = (keys + kKvPageTokens - 1) / kKvPageTokens;
    const auto key_bytes = static_cast<std::size_t>(kKvPageTokens / kPanel * key_group_bytes(type, head_dim));
    const auto value_bytes = static_cast<std::size_t>(value_page_bytes(type, head_dim));
    const std::size_t page_bytes = key_bytes + value_bytes;
    const auto stride = static_cast<std::size_t>(value_stride_of(head_dim));
    BF_ASSIGN_OR_RETURN(head->pages_, AlignedBuffer::create(page_bytes * static_cast<std::size_t>(pages)));
    BF_ASSIGN_OR_RETURN(head->scratch_,
                        AlignedBuffer::create(kAttentionRows * (kAttentionSegment + 2 * stride) * sizeof(float)));
    std::ranges::fill(MutableByteSpan(head->pages_.data(), head->pages_.bytes()), std::byte{0x3c});
    const auto* data = reinterpret_cast<const unsigned char*>(head->pages_.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(pages); ++i) {
      head->keys_.push_back(data + i * page_bytes);
      head->values_.push_back(data + i * page_bytes + key_bytes);
    }
    head->q_.assign(static_cast<std::size_t>(rows * head_dim), 0.5f);
    head->out_.assign(static_cast<std::size_t>(rows) * stride, 0.0f);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      head->q_rows_[row] = head->q_.data() + row * static_cast<std::size_t>(head_dim);
      head->out_rows_[row] = head->out_.data() + row * stride;
      head->visible_[row] = keys;
    }
    head->args_ = {.k_pages = head->keys_.data(),
                   .v_pages = head->values_.data(),
                   .type = type,
                   .head_dim = head_dim,
                   .v_stride = static_cast<int>(stride),
                   .scale = 0.125f,
                   .rows = rows,
                   .q = head->q_rows_.data(),
                   .out = head->out_rows_.data(),
                   .visible = head->visible_.data(),
                   .scratch = reinterpret_cast<float*>(head->scratch_.data())};
    return head;
  }

  void run(const Kernels& kernels) const { kernels.attention(args_); }
  double bytes() const {
    return static_cast<double>(pages_.bytes()) + static_cast<double>((q_.size() + out_.size()) * sizeof(float));
  }

 private:
  AlignedBuffer pages_, scratch_;
  std::vector<const unsigned char*> keys_, values_;
  std::vector<float> q_, out_;
  std::array<const float*, kAttentionRows> q_rows_{};
  std::array<float*, kAttentionRows> out_rows_{};
  std::array<int, kAttentionRows> visible_{};
  AttentionArgs args_;
};

Status visit_heads(const CacheKind& cache, int head_dim, int keys, int rows, int heads, const KernelVisit& visit) {
  std::vector<std::unique_ptr<AttentionHead>> all;
  for (int i = 0; i < heads; ++i) {
    BF_ASSIGN_OR_RETURN(auto head, AttentionHead::create(cache.type, head_dim, keys, rows));
    all.push_back(std::move(head));
  }
  const double flops = 4.0 * rows * static_cast<double>(keys) * head_dim;
  KernelCase one{.operation = "attention",
                 .type = cache.name,
                 .shape = fmt::format("{} x {} keys of {}", rows, keys, head_dim),
                 .flops = flops,
                 .bytes = all.front()->bytes(),
                 .calls = heads};
  one.run = [&](const Kernels& kernels, ThreadTeam& team) {
    team.run([&](int member) {
      const WorkRange mine = split_work(heads, member, team.size());
      for (long i = mine.begin; i < mine.end; ++i) all[static_cast<std::size_t>(i)]->run(kernels);
    });
  };
  return visit(one);
}

}  // namespace

Status visit_attention(const KernelWork& work, const KernelVisit& visit) {
  const int heads = std::max(8, usable_threads());
  for (const CacheKind& cache : kCacheKinds) {
    for (const int head_dim : kHeadDims) {
      for (const int keys : work.keys) {
        for (const int rows : kQueryRows) BF_TRY(visit_heads(cache, head_dim, keys, rows, heads, visit));
      }
    }
  }
  return {};
}

}  // namespace butterfly::app
