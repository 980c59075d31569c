#include "butterfly/train/checkpoint/agreement.h"

#include <cstring>

namespace butterfly {
namespace {

/// What a rank says of itself before it gives or takes.
struct Standing {
  std::int64_t step = 0;
  std::int64_t updates = 0;
  std::uint64_t guard_values = 0;
};

int ranks_of(const Collectives* collectives) {
  return collectives == nullptr ? 1 : collectives->size();
}
int rank_of(const Collectives* collectives) {
  return collectives == nullptr ? 0 : collectives->rank();
}

/// Every rank's value, in rank order.
template <typename T>
Result<std::vector<T>> gather(Collectives& collectives, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(collectives.size()));
  all[static_cast<std::size_t>(collectives.rank())] = mine;
  std::vector<MutableByteSpan> parts;
  for (T& value : all) parts.push_back(std::as_writable_bytes(std::span(&value, 1)));
  BF_TRY(collectives.all_gather(parts));
  return all;
}

std::span<float> floats_of(const AlignedBuffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), static_cast<std::size_t>(buffer.bytes() / sizeof(float))};
}

/// The first rank's arrays become the sum of all ranks'; the others are dropped.
void fold(Residuals& saved) {
  for (std::size_t rank = 1; rank < saved.size(); ++rank) {
    for (std::size_t i = 0; i < saved[0].size(); ++i) {
      const std::span<float> into = floats_of(saved[0][i]), from = floats_of(saved[rank][i]);
      for (std::size_t at = 0; at < into.size(); ++at) into[at] += from[at];
    }
  }
  saved.resize(1);
}

Status check_lengths(const Residuals& saved, std::span<const std::span<float>> mine) {
  for (const auto& arrays : saved) {
    bool same = arrays.size() == mine.size();
    for (std::size_t i = 0; same && i < mine.size(); ++i) same = arrays[i].bytes() == mine[i].size_bytes();
    if (!same) {
      return make_error(ErrorCode::kBadData, "a rank's residuals are {} arrays, the codecs of this run have {}",
                        arrays.size(), mine.size());
    }
  }
  return {};
}

}  // namespace

Status check_same_configuration(Collectives* collectives, const std::string& fingerprint) {
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> all, gather_texts(collectives, fingerprint));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "rank {} was configured for another run ({:.12}) than rank 0 ({:.12}): model, data or a key that "
                      "decides bits differs",
                      rank, all[rank], all[0]);
  }
  return {};
}

Result<bool> agree_on_last_step(Collectives* collectives, RunState& state, std::span<const RunArray> arrays) {
  if (ranks_of(collectives) == 1) return false;
  BF_ASSIGN_OR_RETURN(
      const std::vector<Standing> standings,
      gather(*collectives, Standing{state.step, state.updates, static_cast<std::uint64_t>(state.guard.size())}));
  std::size_t source = 0;
  bool all_same = true;
  for (std::size_t rank = 1; rank < standings.size(); ++rank) {
    all_same = all_same && standings[rank].step == standings[0].step;
    if (standings[rank].step > standings[source].step) source = rank;
  }
  if (all_same) return false;
  const Standing& newest = standings[source];
  const int root = static_cast<int>(source);
  for (const RunArray& array : arrays) {
    BF_TRY(collectives->broadcast(std::as_writable_bytes(array.values), root));
  }
  state.step = newest.step;
  state.updates = newest.updates;
  state.guard.resize(newest.guard_values);
  if (!state.guard.empty()) BF_TRY(collectives->broadcast(std::as_writable_bytes(std::span(state.guard)), root));
  return true;
}

Result<Residuals> gather_residuals(Collectives* collectives, std::span<const std::span<float>> mine) {
  const auto ranks = static_cast<std::size_t>(ranks_of(collectives));
  Residuals all;
  if (mine.empty()) return all;
  const bool collects = rank_of(collectives) == 0;
  if (collects) all.resize(ranks);
  for (const std::span<float> residual : mine) {
    std::vector<ByteSpan> parts(ranks);
    std::vector<MutableByteSpan> pieces(ranks);
    if (!collects) parts[0] = std::as_bytes(residual);
    for (std::size_t rank = 0; collects && rank < ranks; ++rank) {
      BF_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::create(residual.size_bytes()));
      if (rank == 0) std::memcpy(buffer.data(), residual.data(), residual.size_bytes());
      if (rank != 0) pieces[rank] = {buffer.data(), residual.size_bytes()};
      all[rank].push_back(std::move(buffer));
    }
    if (ranks > 1) BF_TRY(collectives->all_to_all(parts, pieces));
  }
  return all;
}

Status scatter_residuals(Collectives* collectives, Residuals saved, std::span<const std::span<float>> mine) {
  if (mine.empty()) return {};
  const auto ranks = static_cast<std::size_t>(ranks_of(collectives));
  const bool gives = rank_of(collectives) == 0;
  if (gives) BF_TRY(check_lengths(saved, mine));
  if (gives && !saved.empty() && saved.size() != ranks) fold(saved);
  std::uint64_t count = saved.size();
  if (ranks > 1) {
    BF_TRY(collectives->broadcast(std::as_writable_bytes(std::span(&count, 1)), 0));
  }
  for (std::size_t i = 0; gives && !saved.empty() && i < mine.size(); ++i) {
    std::memcpy(mine[i].data(), saved[0][i].data(), mine[i].size_bytes());
  }
  if (ranks == 1 || count != ranks) return {};
  for (std::size_t i = 0; i < mine.size(); ++i) {
    std::vector<ByteSpan> parts(ranks);
    std::vector<MutableByteSpan> pieces(ranks);
    for (std::size_t rank = 1; gives && rank < ranks; ++rank) parts[rank] = std::as_bytes(floats_of(saved[rank][i]));
    if (!gives) pieces[0] = std::as_writable_bytes(mine[i]);
    BF_TRY(collectives->all_to_all(parts, pieces));
  }
  return {};
}

Result<std::vector<std::string>> gather_texts(Collectives* collectives, const std::string& mine) {
  if (ranks_of(collectives) == 1) return std::vector<std::string>{mine};
  std::vector<std::string> all(static_cast<std::size_t>(ranks_of(collectives)), std::string(mine.size(), '\0'));
  all[static_cast<std::size_t>(rank_of(collectives))] = mine;
  std::vector<MutableByteSpan> parts;
  for (std::string& text : all) parts.push_back(std::as_writable_bytes(std::span(text)));
  BF_TRY(collectives->all_gather(parts));
  return all;
}

}  // namespace butterfly
