#include "butterfly/model/inference/kv_cache.h"

#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/base/units.h"

namespace butterfly {
namespace {

int element_bytes(DType type) {
  return type == DType::kF16 ? 2 : 4;
}
int round_up_to_panel(int n) {
  return (n + kPanel - 1) / kPanel * kPanel;
}

}  // namespace

std::uint64_t KvCache::page_bytes(const KvCacheOptions& o) {
  const std::int64_t per_token = o.head_dim + round_up_to_panel(o.value_dim.value_or(o.head_dim));
  return static_cast<std::uint64_t>(per_token * kKvPageTokens * element_bytes(o.type) * o.kv_heads) *
         static_cast<std::uint64_t>(o.layers);
}

KvCache::KvCache(const KvCacheOptions& options) : options_(options) {
  BF_CHECK(options.type == DType::kF16 || options.type == DType::kF32, "the cache holds halves or floats");
  element_bytes_ = element_bytes(options.type);
  value_stride_ = round_up_to_panel(options.value_dim.value_or(options.head_dim));
  key_bytes_ = static_cast<std::int64_t>(kKvPageTokens) * options.head_dim * element_bytes_;
  head_bytes_ = key_bytes_ + static_cast<std::int64_t>(kKvPageTokens) * value_stride_ * element_bytes_;
  page_bytes_ = page_bytes(options);
}

Status KvCache::reserve(SequenceId sequence, std::int64_t tokens) {
  std::vector<std::int32_t>& table = tables_[sequence];
  const auto needed = static_cast<std::size_t>((tokens + kKvPageTokens - 1) / kKvPageTokens);
  while (table.size() < needed) {
    if (free_pages_.empty()) {
      if (options_.bytes_max != 0 && bytes_reserved() + page_bytes_ > options_.bytes_max) {
        return make_error(ErrorCode::kNoMemory,
                          "the key/value cache is limited to {}, {} tokens of {} sequences need more",
                          format_bytes(options_.bytes_max), tokens, tables_.size());
      }
      BF_ASSIGN_OR_RETURN(AlignedBuffer page, AlignedBuffer::create(page_bytes_));
      // Padding of values is multiplied by zero weights; it must be finite.
      std::memset(page.data(), 0, page_bytes_);
      free_pages_.push_back(static_cast<std::int32_t>(pages_.size()));
      pages_.push_back(std::move(page));
    }
    table.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  return {};
}

void KvCache::release(SequenceId sequence) {
  const auto found = tables_.find(sequence);
  if (found == tables_.end()) return;
  free_pages_.insert(free_pages_.end(), found->second.begin(), found->second.end());
  tables_.erase(found);
}

std::int64_t KvCache::head_offset(int layer, int head) const {
  return (static_cast<std::int64_t>(layer) * options_.kv_heads + head) * head_bytes_;
}

unsigned char* KvCache::page_of(SequenceId sequence, std::int64_t position) const {
  const auto page = static_cast<std::size_t>(position / kKvPageTokens);
  const std::vector<std::int32_t>& table = tables_.at(sequence);
  BF_CHECK(page < table.size(), "a position was not reserved");
  return reinterpret_cast<unsigned char*>(pages_[static_cast<std::size_t>(table[page])].data());
}

KvCache::HeadPages KvCache::head_pages(SequenceId sequence, int layer, int head) const {
  HeadPages result;
  for (const std::int32_t page : tables_.at(sequence)) {
    const auto* base = reinterpret_cast<const unsigned char*>(pages_[static_cast<std::size_t>(page)].data());
    result.keys.push_back(base + head_offset(layer, head));
    result.values.push_back(base + head_offset(layer, head) + key_bytes_);
  }
  return result;
}

unsigned char* KvCache::key_at(SequenceId sequence, int layer, int head, std::int64_t position) {
  const std::int64_t in_page = position % kKvPageTokens;
  const std::int64_t element = in_page / kPanel * options_.head_dim * kPanel + in_page % kPanel;
  return page_of(sequence, position) + head_offset(layer, head) + element * element_bytes_;
}

unsigned char* KvCache::value_at(SequenceId sequence, int layer, int head, std::int64_t position) {
  const std::int64_t element = position % kKvPageTokens * value_stride_;
  return page_of(sequence, position) + head_offset(layer, head) + key_bytes_ + element * element_bytes_;
}

}  // namespace butterfly
