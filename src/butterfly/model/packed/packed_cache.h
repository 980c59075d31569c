// A folder in which a node keeps the packed parts of models, so that its next start maps them: it reads no byte twice,
// packs nothing, asks no coordinator, and shares the memory with the host's other processes. Files may be deleted at
// any time; one that is damaged, or of another version, is packed anew. Checksums are looked at once for each version
// of a file and each start of the machine: a file beside it says that they held. Used by one thread; several processes
// may have one folder.
#pragma once

#include <memory>
#include <string>

#include "butterfly/base/log.h"
#include "butterfly/base/result.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/packed/packed_part.h"

namespace butterfly {

class PackedCache {
 public:
  /// Keeps nothing where `folder` is empty.
  explicit PackedCache(std::string folder = {}) : folder_(std::move(folder)) {}

  /// Whose parts are meant from here on; an empty identity: nobody's, nothing is kept.
  void set_model(const std::string& identity);

  /// Drops all that it has of the model: it was packed from something else.
  void forget_model();

  /// What `load` makes of the source of the part called `name`: of the file, else of what `find_source` gives, which is
  /// written then. Files that cannot be read or written are told of in the log and change nothing else.
  template <typename FindSource, typename Load>
  auto load(const std::string& name, ThreadTeam& team, const FindSource& find_source, const Load& load)
      -> decltype(load(std::declval<const WeightSource&>())) {
    if (model_folder_.empty()) {
      BF_ASSIGN_OR_RETURN(const std::shared_ptr<const WeightSource> source, find_source());
      return load(*source);
    }
    if (const auto mapped = find(name, team)) {
      auto loaded = load(*mapped);
      if (loaded) return loaded;
      log().warn("{}, so it is packed anew", loaded.error().message);
    }
    BF_ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> source, find_source());
    const PackedRecorder recorder(std::move(source));
    auto loaded = load(recorder);
    if (loaded) keep(name, recorder);
    return loaded;
  }

 private:
  std::string path_of(const std::string& name) const { return model_folder_ + "/" + name + ".packed"; }
  std::shared_ptr<const WeightSource> find(const std::string& name, ThreadTeam& team) const;
  void keep(const std::string& name, const PackedRecorder& recorder);

  std::string folder_;
  std::string model_folder_;  // empty: nothing is kept
};

}  // namespace butterfly
