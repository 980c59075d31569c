#include "butterfly/train/checkpoint/sharded_save.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/train/checkpoint/agreement.h"

namespace butterfly {
namespace {

/// Every rank's text, whatever its length.
Result<std::vector<std::string>> gather_all_texts(Collectives& collectives, const std::string& mine) {
  std::string length(20, ' ');
  std::snprintf(length.data(), length.size(), "%zu", mine.size());
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> lengths, gather_texts(&collectives, length));
  std::vector<std::string> all;
  std::vector<MutableByteSpan> parts;
  for (const std::string& text : lengths) all.emplace_back(std::strtoull(text.c_str(), nullptr, 10), '\0');
  all[static_cast<std::size_t>(collectives.rank())] = mine;
  for (std::string& text : all) parts.push_back(std::as_writable_bytes(std::span(text)));
  BF_TRY(collectives.all_gather(parts));
  return all;
}

/// All ranks go on, or all of them learn what went wrong on the first that did not.
Status agree(Collectives& collectives, const Status& mine) {
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      gather_all_texts(collectives, mine ? std::string() : mine.error().message));
  for (const std::string& text : all) {
    if (!text.empty()) return make_error(ErrorCode::kIo, "{}", text);
  }
  return {};
}

/// Rank 0 writes what the others send, one array of one rank at a time.
class PartsToRankZero {
 public:
  explicit PartsToRankZero(const ShardedSave& save) : save_(save) {}

  Result<std::vector<CheckpointFile>> write(const std::string& folder, std::span<const RunArray> arrays) {
    std::vector<CheckpointFile> written;
    Status status;
    for (int rank = 0; rank < save_.collectives.size(); ++rank) {
      BF_ASSIGN_OR_RETURN(const std::vector<ParameterRange> ranges, ranges_of(rank, arrays));
      for (const RunArray& array : arrays) {
        BF_ASSIGN_OR_RETURN(std::vector<float> values, send(rank, array, ranges));
        if (save_.collectives.rank() != 0 || !status || values.empty()) continue;
        const RunPart part{.name = array.name, .values = values, .ranges = ranges};
        auto files = write_parts(save_.files, folder, rank, std::span(&part, 1));
        if (!files) {
          status = tl::unexpected(files.error());  // the others go on sending
          continue;
        }
        written.push_back(std::move(files->front()));
      }
    }
    BF_TRY(status);
    return written;
  }

 private:
  /// Of what `rank` holds and writes, known to all.
  Result<std::vector<ParameterRange>> ranges_of(int rank, std::span<const RunArray> arrays) {
    std::string mine;
    if (save_.collectives.rank() == rank) {
      mine.resize(arrays[0].ranges.size() * sizeof(ParameterRange));
      std::memcpy(mine.data(), arrays[0].ranges.data(), mine.size());
    }
    BF_ASSIGN_OR_RETURN(const std::vector<std::string> all, gather_all_texts(save_.collectives, mine));
    const std::string& bytes = all[static_cast<std::size_t>(rank)];
    std::vector<ParameterRange> ranges(bytes.size() / sizeof(ParameterRange));
    std::memcpy(ranges.data(), bytes.data(), ranges.size() * sizeof(ParameterRange));
    return ranges;
  }

  /// On rank 0 what `rank` has of the array; elsewhere nothing.
  Result<std::vector<float>> send(int rank, const RunArray& array, const std::vector<ParameterRange>& ranges) {
    std::size_t size = 0;
    for (const ParameterRange& range : ranges) size += static_cast<std::size_t>(range.size());
    const int me = save_.collectives.rank();
    std::vector<float> values;
    if (me == 0 || me == rank) values.reserve(size);
    if (me == rank) {
      for (const ParameterRange& range : ranges) {
        const auto from = array.values.begin() + range.begin;
        values.insert(values.end(), from, from + range.size());
      }
    }
    if (rank == 0) return me == 0 ? std::move(values) : std::vector<float>();
    const auto members = static_cast<std::size_t>(save_.collectives.size());
    std::vector<ByteSpan> to(members);
    std::vector<MutableByteSpan> from(members);
    if (me == rank) to[0] = std::as_bytes(std::span(values));
    if (me == 0) {
      values.resize(size);
      from[static_cast<std::size_t>(rank)] = std::as_writable_bytes(std::span(values));
    }
    BF_TRY(save_.collectives.all_to_all(to, from));
    return me == 0 ? std::move(values) : std::vector<float>();
  }

  const ShardedSave& save_;
};

}  // namespace

Result<std::string> begin_shards(const ShardedSave& save, std::int64_t step) {
  Status begun;
  std::string folder;
  if (save.collectives.rank() == 0) {
    auto made = begin_checkpoint(save.files, save.directory, step);
    if (made) folder = *made;
    if (!made) begun = tl::unexpected(made.error());
  }
  BF_TRY(agree(save.collectives, begun));
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> folders, gather_all_texts(save.collectives, folder));
  return folders[0];
}

Result<std::string> complete_shards(const ShardedSave& save, const RunSnapshot& run, const std::string& folder,
                                    const Result<std::vector<CheckpointFile>>& mine) {
  const bool first = save.collectives.rank() == 0;
  const Status written = mine ? Status{} : Status(tl::unexpected(mine.error()));
  if (const Status all = agree(save.collectives, written); !all) {
    if (first) (void)save.files.remove(folder);
    return tl::unexpected(all.error());
  }
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> lists, gather_all_texts(save.collectives, to_json(*mine)));
  Result<std::string> path = checkpoint_path(save.directory, run.state.step);
  if (first) {
    std::vector<CheckpointFile> parts;
    Status complete;
    for (const std::string& list : lists) {
      auto files = parse_files(list, "what a rank has written");
      if (!files) complete = tl::unexpected(files.error());
      if (files) parts.insert(parts.end(), files->begin(), files->end());
    }
    if (complete) path = complete_checkpoint(save.files, save.directory, folder, run, std::move(parts));
    if (!complete) path = tl::unexpected(complete.error());
    // Old checkpoints that cannot be removed do no harm to this one.
    if (path) (void)prune_checkpoints(save.files, save.directory, save.keep);
  }
  BF_TRY(agree(save.collectives, path ? Status{} : Status(tl::unexpected(path.error()))));
  return path;
}

Result<std::string> save_shards(const ShardedSave& save, const RunSnapshot& run) {
  BF_ASSIGN_OR_RETURN(const std::string folder, begin_shards(save, run.state.step));
  Result<std::vector<CheckpointFile>> mine;
  if (save.folder == FolderOf::kRankZero) {
    mine = PartsToRankZero(save).write(folder, run.arrays);
    if (!mine && ends_epoch(mine.error())) return tl::unexpected(mine.error());
  } else {
    mine = write_parts(save.files, folder, save.collectives.rank(), run.arrays);
  }
  return complete_shards(save, run, folder, mine);
}

}  // namespace butterfly
