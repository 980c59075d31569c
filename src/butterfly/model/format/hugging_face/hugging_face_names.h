// What Hugging Face checkpoints call the canonical weights, and in which order they store the rows of Q and K.
// Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace butterfly {

/// "blk.3.attn_q.weight" in parts; layer is empty outside blocks. "blk.3.ffn_up_exps.7.weight" has expert 7. Views into
/// the name.
struct WeightNameParts {
  std::string_view layer, stem, kind, expert;
};
WeightNameParts split_weight_name(std::string_view name);

/// The name in the files of `architecture`; empty for a weight that it lacks. GPT-2's Q, K and V share one.
std::string hugging_face_name(std::string_view canonical, std::string_view architecture);

/// How a family stores the outputs of Q, K and V: as three tensors; as one, behind one another; as one in which the
/// query heads of a key/value head are followed by it and by its value head. GPT-2 is a case of its own.
enum class QkvOrder : std::uint8_t { kApart, kBehindOneAnother, kByKeyHead };
QkvOrder qkv_order(std::string_view architecture);

/// Whether config.rope.pairs is kAdjacent (as GGUF has it) and the files have rows for kHalves.
bool rotates_halves_in_files(std::string_view architecture);

/// Whether the files hold the weights of norms less 1.
bool norms_around_one(std::string_view architecture);

bool is_query_or_key(std::string_view canonical);

/// Row r of a head in adjacent order comes from this row in half-split order: pair i is (i, i + head_dim / 2) there.
std::int64_t half_split_row(std::int64_t row, std::int64_t head_dim);

}  // namespace butterfly
