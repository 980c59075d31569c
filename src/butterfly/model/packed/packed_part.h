// One part of a model as nodes compute with it (a block, or an end of the model), in a file that the next start maps
// instead of packing anew: docs/formats/packed.md. The recorder writes it, PackedPart reads it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

/// Where a weight lies in the file of its part.
struct PackedEntry {
  WeightPart part{};
  bool packed = false;       // or as it is stored
  DType type = DType::kF32;  // that it is stored as
  ByteSpan bytes{};          // of the mapped file
};

/// What is looked at when a file is opened: its form always, every byte's checksum where that is not known to hold.
enum class PartCheck : std::uint8_t { kForm, kBytes };

/// A source of what its file has, which it keeps mapped for as long as a matrix of it lives. Immutable, thread-safe.
class PackedPart final : public WeightSource {
 public:
  /// Errors: those of MappedFile::open and read().
  static Result<std::shared_ptr<const PackedPart>> open(const std::string& path, ThreadTeam& team, PartCheck check);
  /// The same of a file's bytes, which `owner` keeps alive. Errors: kBadData for what is damaged or of another form.
  static Result<std::shared_ptr<const PackedPart>> read(ByteSpan bytes, std::shared_ptr<const void> owner,
                                                        const std::string& path, ThreadTeam& team, PartCheck check);

  std::vector<WeightInfo> list() const override;
  /// Errors: kNotFound; kInvalidArgument where the file has a part of it alone.
  Result<WeightView> find(const std::string& name) const override;
  /// Errors: kNotFound, also for another part than the file's and for a matrix that is there packed.
  Result<WeightView> find_part(const std::string& name, const WeightPart& part) const override;
  std::optional<PackedMatrix> find_packed(const std::string& name, const WeightPart& part) const override;
  bool contains(const std::string& name) const override { return entries_.contains(name); }
  std::string description() const override { return path_; }

 private:
  std::string path_;
  std::shared_ptr<const void> owner_;  // of the bytes
  std::map<std::string, PackedEntry> entries_;
};

/// Passes on what `source` has, and remembers what was asked of it. Used by one thread; what was packed from it has to
/// be alive while it is written.
class PackedRecorder final : public WeightSource {
 public:
  explicit PackedRecorder(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}

  /// Writes all that was asked for. Errors: those of PendingFile.
  Status write(const std::string& path) const;

  std::vector<WeightInfo> list() const override { return source_->list(); }
  Result<WeightView> find(const std::string& name) const override { return source_->find(name); }
  Result<WeightView> find_part(const std::string& name, const WeightPart& part) const override;
  std::optional<PackedMatrix> find_packed(const std::string& name, const WeightPart& part) const override {
    return source_->find_packed(name, part);
  }
  void was_packed(const std::string& name, const WeightPart& part, const PackedMatrix& matrix) const override;
  bool contains(const std::string& name) const override { return source_->contains(name); }
  std::string description() const override { return source_->description(); }
  void read_behind(const WeightView& view) const override { source_->read_behind(view); }
  void release(const WeightView& view) const override { source_->release(view); }

 private:
  struct Answer {
    PackedEntry entry{};
    WeightView view{};  // keeps bytes alive that are not packed
  };
  std::shared_ptr<const WeightSource> source_;
  mutable std::map<std::string, Answer> answers_;
};

}  // namespace butterfly
