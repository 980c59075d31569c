// How keys and values lie in a page of the cache. Float types: keys in groups of 16, [group][head_dim][16 keys], values
// as [token][head_dim rounded up to 16]. q8_0: quants in the same order, one byte each; a group's are followed by its
// scales, halves [head_dim / 32, rounded up][16 keys], the values of a page by theirs, [blocks][kKvPageTokens]. The
// last block of a head has what is left of it. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

constexpr long kCacheBlock = 32;  // elements that share a scale

constexpr long cache_element_bytes(CacheType type) {
  return type == CacheType::kF32 ? 4 : type == CacheType::kF16 ? 2 : 1;
}

constexpr long cache_blocks(long elements) {
  return (elements + kCacheBlock - 1) / kCacheBlock;
}

constexpr long cache_scale_bytes(CacheType type, long elements) {
  return type == CacheType::kQ8_0 ? 2 * cache_blocks(elements) : 0;
}

/// Of the keys of one group.
constexpr long key_group_bytes(CacheType type, long head_dim) {
  return kPanel * (head_dim * cache_element_bytes(type) + cache_scale_bytes(type, head_dim));
}

/// Of one value with its padding.
constexpr long value_stride_of(long value_dim) {
  return (value_dim + kPanel - 1) / kPanel * kPanel;
}

/// Of the values of one page.
constexpr long value_page_bytes(CacheType type, long value_dim) {
  return kKvPageTokens * (value_stride_of(value_dim) * cache_element_bytes(type) + cache_scale_bytes(type, value_dim));
}

}  // namespace
}  // namespace butterfly
