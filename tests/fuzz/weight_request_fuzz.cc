// Requests for weights from a hostile peer: whatever rows and columns it asks for, it gets bytes of that weight and of
// the shape that the answer names, or a sentence. The first byte says how the rest is read.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/worker/weight_transfer.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/stage/fetched_weights.h"
#include "butterfly/wire/channel/inproc.h"
#include "seeds.h"

namespace {

using namespace butterfly;

void require(bool condition) {
  if (!condition) std::abort();
}

ModelConfig small_config() {
  ModelConfig config = *named_config("llama-1.1b");
  config.layers = 1;
  config.model_dim = 32;
  config.heads = config.kv_heads = 4;
  config.head_dim = 8;
  config.ff_dim = 96;
  config.vocab = 40;
  config.rope.dim = 8;
  return config;
}

const Checkpoint& checkpoint(DType type) {
  static const Checkpoint quantised = *random_checkpoint(small_config(), {.seed = 1, .type = DType::kQ4_0});
  static const Checkpoint plain = *random_checkpoint(small_config(), {.seed = 1, .type = DType::kF16});
  return type == DType::kQ4_0 ? quantised : plain;
}

/// What the weight_server of weights does with it.
void give(const WeightPart& part, const std::string& name, DType type) {
  const auto given = provide_weights(checkpoint(type).weights)(name, part);
  if (!given) return;
  const auto row = row_bytes(static_cast<DType>(given->type), static_cast<std::uint64_t>(given->cols));
  require(row && given->rows > 0 && given->bytes.size() == *row * static_cast<std::uint64_t>(given->rows));
  require(given->rows == part.of_rows.size() && given->cols == part.of_cols.size());
  unsigned sum = 0;  // a sanitizer sees what lies outside
  for (const std::byte byte : given->bytes) sum += std::to_integer<unsigned>(byte);
  require(sum < 256u * static_cast<unsigned>(given->bytes.size()) + 1);
}

/// A frame's meta part, through the loop that answers on a connection.
void answer(ByteSpan bytes) {
  auto [near, far] = make_inproc_pair();
  require(near->send({.tag = 1, .meta = {bytes.begin(), bytes.end()}}, after_ms(1000)).has_value());
  near->close();  // the loop ends after this request
  std::atomic<std::uint64_t> sent{0};
  require(!serve_weights(*far, provide_weights(checkpoint(DType::kQ4_0).weights), sent));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  for (const ExpectedPart& expected : expected_parts(small_config(), {.last_layer = 1, .head = true}, {0, 5})) {
    control::WeightMessage message;
    control::WeightWanted& wanted = *message.mutable_wanted();
    wanted.set_name(expected.whole.name);
    wanted.set_rows(expected.part.rows);
    wanted.set_cols(expected.part.cols);
    wanted.set_first_row(expected.part.of_rows.begin);
    wanted.set_last_row(expected.part.of_rows.end);
    wanted.set_first_col(expected.part.of_cols.begin);
    wanted.set_last_col(expected.part.of_cols.end);
    fuzz::write_seed(folder, expected.whole.name, '\0' + message.SerializeAsString());
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    answer(bytes);
    return 0;
  }
  // Numbers alone: of a weight of 96 x 32, or 32 x 96 in blocks.
  std::int64_t numbers[4] = {};
  std::memcpy(numbers, bytes.data(), std::min(bytes.size(), sizeof(numbers)));
  const IndexRange rows{numbers[0], numbers[1]};
  const IndexRange cols{numbers[2], numbers[3]};
  give({96, 32, rows, cols}, "blk.0.ffn_up.weight", data[0] % 4 == 1 ? DType::kQ4_0 : DType::kF16);
  give({32, 96, rows, cols}, "blk.0.ffn_down.weight", data[0] % 4 == 1 ? DType::kQ4_0 : DType::kF16);
  return 0;
}
