#include "butterfly/infer/scheduler/prefix_index.h"

#include <algorithm>

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

/// A step of FNV-1a over whole words, and a mix so that high bits reach low ones.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x100000001b3ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

std::vector<std::uint64_t> prefix_hashes(std::span<const TokenId> tokens) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    hash = mixed(hash, static_cast<std::uint32_t>(tokens[i].value));
    if ((i + 1) % kKvPageTokens == 0) hashes.push_back(hash);
  }
  return hashes;
}

void PrefixIndex::add(SequenceId sequence, std::span<const std::uint64_t> hashes) {
  for (const std::uint64_t hash : hashes) holders_[hash].push_back(sequence);
}

void PrefixIndex::remove(SequenceId sequence, std::span<const std::uint64_t> hashes) {
  for (const std::uint64_t hash : hashes) {
    const auto found = holders_.find(hash);
    if (found == holders_.end()) continue;
    std::erase(found->second, sequence);
    if (found->second.empty()) holders_.erase(found);
  }
}

std::span<const SequenceId> PrefixIndex::holders(std::uint64_t hash) const {
  const auto found = holders_.find(hash);
  return found == holders_.end() ? std::span<const SequenceId>{} : std::span<const SequenceId>(found->second);
}

}  // namespace butterfly
