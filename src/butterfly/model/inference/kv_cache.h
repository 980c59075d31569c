// Keys and values of the sequences that a node works on, for the layers it holds, in pages of kKvPageTokens tokens.
// Inside a page, per layer and key/value head: keys in groups of 16, [group][head_dim][16], so that one vector
// register holds 16 keys; then values [token][head_dim rounded up to 16], where they are not a part of the keys. One
// thread reserves and releases; between those calls any number of threads may read and write distinct tokens. The cache
// owns the pages and reuses them.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

struct KvCacheOptions {
  int layers = 0;
  int cross_layers = 0;  // those at the end of them that hold what the layers before them attend to of an encoded text
  int kv_heads = 0;
  int head_dim = 0;
  std::optional<int> value_dim{};  // none: head_dim; 0: values are parts of their keys and nothing is kept for them
  DType type = DType::kF16;        // kF16 or kF32
  std::uint64_t bytes_max = 0;     // 0: no limit
};

class KvCache {
 public:
  explicit KvCache(const KvCacheOptions& options);

  /// Bytes of one page for these options.
  static std::uint64_t page_bytes(const KvCacheOptions& options);

  /// Makes room for positions [0, tokens) of `sequence`. Errors: kNoMemory naming limit and need.
  Status reserve(SequenceId sequence, std::int64_t tokens);

  /// Forgets `sequence`; its pages serve others. Unknown sequences are ignored.
  void release(SequenceId sequence);

  /// Base addresses of one layer and head in each page of `sequence`.
  struct HeadPages {
    std::vector<const unsigned char*> keys;
    std::vector<const unsigned char*> values;
  };
  HeadPages head_pages(SequenceId sequence, int layer, int head) const;

  /// Where the key and value of one token and head go (see Kernels::store_key).
  unsigned char* key_at(SequenceId sequence, int layer, int head, std::int64_t position);
  unsigned char* value_at(SequenceId sequence, int layer, int head, std::int64_t position);

  /// Where a layer of a decoder, all of which stand behind encoder layers, has the encoded text.
  int cross_layer(int layer) const { return layer + options_.cross_layers; }

  const KvCacheOptions& options() const { return options_; }
  int value_stride() const { return value_stride_; }
  std::uint64_t bytes_reserved() const { return pages_.size() * page_bytes_; }
  std::size_t sequences() const { return tables_.size(); }

 private:
  std::int64_t head_offset(int layer, int head) const;
  unsigned char* page_of(SequenceId sequence, std::int64_t position) const;

  KvCacheOptions options_;
  int element_bytes_ = 2;
  int value_stride_ = 0;
  std::int64_t key_bytes_ = 0;   // of one head in one page
  std::int64_t head_bytes_ = 0;  // keys and values of one head in one page
  std::uint64_t page_bytes_ = 0;
  std::vector<AlignedBuffer> pages_;
  std::vector<std::int32_t> free_pages_;
  std::unordered_map<SequenceId, std::vector<std::int32_t>> tables_;
};

}  // namespace butterfly
