#include "butterfly/model/inference/kv_cache.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/cache_layout_inl.h"

namespace butterfly {
namespace {

constexpr std::array kCacheTypes{DType::kF32, DType::kF16, DType::kQ8_0};

std::uint64_t head_page_bytes(const KvCacheOptions& o) {
  const CacheType type = cache_type(o.type);
  constexpr long kGroups = kKvPageTokens / kPanel;
  const long values = value_page_bytes(type, o.value_dim.value_or(o.head_dim));
  return static_cast<std::uint64_t>(kGroups * key_group_bytes(type, o.head_dim) + values);
}

}  // namespace

std::span<const DType> cache_types() {
  return kCacheTypes;
}

bool is_cache_type(DType type) {
  return std::ranges::find(kCacheTypes, type) != kCacheTypes.end();
}

CacheType cache_type(DType type) {
  BF_CHECK(is_cache_type(type), "a type that a cache may have");
  if (type == DType::kQ8_0) return CacheType::kQ8_0;
  return type == DType::kF16 ? CacheType::kF16 : CacheType::kF32;
}

std::uint64_t cached_bytes(DType type, std::uint64_t elements) {
  const CacheType cached = cache_type(type);
  const auto count = static_cast<long>(elements);
  return static_cast<std::uint64_t>(count * cache_element_bytes(cached) + cache_scale_bytes(cached, count));
}

std::uint64_t KvCache::page_bytes(const KvCacheOptions& o) {
  return head_page_bytes(o) * static_cast<std::uint64_t>(o.kv_heads) * static_cast<std::uint64_t>(o.layers);
}

KvCache::KvCache(const KvCacheOptions& options) : options_(options), type_(cache_type(options.type)) {
  value_dim_ = options.value_dim.value_or(options.head_dim);
  key_bytes_ = kKvPageTokens / kPanel * key_group_bytes(type_, options.head_dim);
  head_bytes_ = static_cast<std::int64_t>(head_page_bytes(options));
  page_bytes_ = page_bytes(options);
  if (options.bytes_max != 0) {
    tables_ = PageTables(static_cast<std::int64_t>(options.bytes_max / std::max<std::uint64_t>(page_bytes_, 1)));
  }
}

Status KvCache::reserve(SequenceId sequence, std::int64_t tokens) {
  if (!tables_.reserve(sequence, tokens)) {
    return make_error(ErrorCode::kNoMemory, "the key/value cache is limited to {}, {} tokens of {} sequences need more",
                      format_bytes(options_.bytes_max), tokens, tables_.sequences());
  }
  while (static_cast<std::int64_t>(pages_.size()) < tables_.created()) {
    BF_ASSIGN_OR_RETURN(AlignedBuffer page, AlignedBuffer::create(page_bytes_));
    // Padding of values is multiplied by zero weights; it must be finite.
    std::memset(page.data(), 0, page_bytes_);
    pages_.push_back(std::move(page));
    held_.emplace_back(trace::Owner::kKvCache, page_bytes_);
  }
  return {};
}

std::int64_t KvCache::head_offset(int layer, int head) const {
  return (static_cast<std::int64_t>(layer) * options_.kv_heads + head) * head_bytes_;
}

KvCache::HeadPages KvCache::head_pages(SequenceId sequence, int layer, int head) const {
  HeadPages result;
  for (const std::int32_t page : tables_.pages(sequence)) {
    const auto* base = reinterpret_cast<const unsigned char*>(pages_[static_cast<std::size_t>(page)].data());
    result.keys.push_back(base + head_offset(layer, head));
    result.values.push_back(base + head_offset(layer, head) + key_bytes_);
  }
  return result;
}

unsigned char* KvCache::head_of(const CachePlace& place) const {
  const auto page = static_cast<std::size_t>(place.position / kKvPageTokens);
  const std::vector<std::int32_t>& table = tables_.pages(place.sequence);
  BF_CHECK(page < table.size(), "a position was not reserved");
  auto* base = reinterpret_cast<unsigned char*>(pages_[static_cast<std::size_t>(table[page])].data());
  return base + head_offset(place.layer, place.head);
}

void KvCache::store_key(const Kernels& kernels, const CachePlace& place, const float* key) {
  const auto token = static_cast<int>(place.position % kKvPageTokens);
  unsigned char* group = head_of(place) + token / kPanel * key_group_bytes(type_, options_.head_dim);
  kernels.store_key(key, options_.head_dim, type_, group, token % kPanel);
}

void KvCache::store_value(const Kernels& kernels, const CachePlace& place, const float* value) {
  const auto token = static_cast<int>(place.position % kKvPageTokens);
  kernels.store_value(value, value_dim_, type_, head_of(place) + key_bytes_, token);
}

}  // namespace butterfly
