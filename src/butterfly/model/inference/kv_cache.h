// Keys and values of the sequences that a node works on, for the layers it holds, in pages of kKvPageTokens tokens.
// Inside a page, per layer and key/value head: keys in groups of 16, so that one vector register holds an element of 16
// keys; then values, where they are not a part of the keys (kernel/inference/cache_layout_inl.h). One thread reserves
// and releases; between those calls any number of threads may read and write distinct tokens. The cache owns the pages
// and reuses them. Sequences that begin alike may share whole pages; nobody writes into a page that is shared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/model/inference/page_tables.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/dtype.h"
#include "butterfly/trace/held.h"

namespace butterfly {

/// Types that a cache may have, and how kernels call them.
std::span<const DType> cache_types();
bool is_cache_type(DType type);
CacheType cache_type(DType type);

/// Bytes of one key, or one value, of `elements` in a cache of `type`: what plans count. Without padding.
std::uint64_t cached_bytes(DType type, std::uint64_t elements);

struct KvCacheOptions {
  int layers = 0;
  int cross_layers = 0;  // those at the end of them that hold what the layers before them attend to of an encoded text
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<int> value_dim{};  // none: head_dim; 0: values are parts of their keys and nothing is kept for them
  DType type = DType::kF16;        // one of cache_types()
  std::uint64_t bytes_max = 0;     // 0: no limit
};

/// Of one token and head.
struct CachePlace {
  SequenceId sequence{};
  int layer = 0;
  int head = 0;
  std::int64_t position = 0;
};

class KvCache {
 public:
  explicit KvCache(const KvCacheOptions& options);

  /// Bytes of one page for these options.
  static std::uint64_t page_bytes(const KvCacheOptions& options);

  /// Makes room for positions [0, tokens) of `sequence`. Errors: kNoMemory naming limit and need.
  Status reserve(SequenceId sequence, std::int64_t tokens);

  /// Gives `to`, which has nothing yet, the first `tokens` of `from`, without copying them. Errors: those of
  /// PageTables::share().
  Status share(SequenceId from, SequenceId to, std::int64_t tokens) { return tables_.share(from, to, tokens); }

  /// Forgets `sequence`; pages that no other has serve others. Unknown sequences are ignored.
  void release(SequenceId sequence) { tables_.release(sequence); }

  /// Base addresses of one layer and head in each page of `sequence`.
  struct HeadPages {
    std::vector<const unsigned char*> keys;
    std::vector<const unsigned char*> values;
  };
  HeadPages head_pages(SequenceId sequence, int layer, int head) const;

  /// Stores the key, or the value, of one token and head.
  void store_key(const Kernels& kernels, const CachePlace& place, const float* key);
  void store_value(const Kernels& kernels, const CachePlace& place, const float* value);

  /// Where a layer of a decoder, all of which stand behind encoder layers, has the encoded text.
  int cross_layer(int layer) const { return layer + options_.cross_layers; }

  const KvCacheOptions& options() const { return options_; }
  std::uint64_t bytes_reserved() const { return pages_.size() * page_bytes_; }
  std::size_t sequences() const { return tables_.sequences(); }

 private:
  std::int64_t head_offset(int layer, int head) const;
  /// The keys of one head in the page that has the place; its values follow.
  unsigned char* head_of(const CachePlace& place) const;

  KvCacheOptions options_;
  CacheType type_ = CacheType::kF16;
  int value_dim_ = 0;
  std::int64_t key_bytes_ = 0;   // of one head in one page
  std::int64_t head_bytes_ = 0;  // keys and values of one head in one page
  std::uint64_t page_bytes_ = 0;
  std::vector<AlignedBuffer> pages_;
  std::vector<trace::Held> held_;  // one for each page
  PageTables tables_;
};

}  // namespace butterfly
