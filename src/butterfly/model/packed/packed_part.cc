#include "butterfly/model/packed/packed_part.h"

#include <atomic>
#include <cstring>

#include "butterfly/base/hash/crc32c.h"
#include "butterfly/base/json.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/files/pending_file.h"

namespace butterfly {
namespace {

using nlohmann::json;

constexpr char kPackedMagic[8] = {'B', 'F', 'P', 'A', 'C', 'K', 'E', 'D'};
constexpr std::uint32_t kPackedVersion = 1;
constexpr std::uint64_t kPackedAlignment = 4096;  // kernels want 64; whole pages are mapped
constexpr std::uint64_t kPieceBytes = 4 << 20;    // with a checksum of its own

/// At the beginning of the file, in the order of the machine, as all of it is.
struct Preamble {
  char magic[8];
  std::uint32_t version;
  std::uint32_t index_checksum;
  std::uint64_t index_at;
  std::uint64_t index_bytes;
};
static_assert(sizeof(Preamble) == 32);

tl::unexpected<Error> damaged(const std::string& path, std::string_view what) {
  return make_error(ErrorCode::kBadData, "{}: {}", path, what);
}

std::vector<std::uint32_t> checksums(ByteSpan bytes) {
  std::vector<std::uint32_t> sums;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<std::size_t>(bytes.size(), kPieceBytes))) {
    sums.push_back(crc32c(bytes.first(std::min<std::size_t>(bytes.size(), kPieceBytes))));
  }
  return sums;
}

/// A piece of a file and what its checksum has to be.
struct Piece {
  ByteSpan bytes{};
  std::uint32_t sum = 0;
};

bool all_hold(const std::vector<Piece>& pieces, ThreadTeam& team) {
  std::atomic<bool> hold{true};
  team.run([&](int member) {
    const WorkRange range = split_work(static_cast<long>(pieces.size()), member, team.size());
    for (long i = range.begin; i < range.end && hold; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      if (crc32c(piece.bytes) != piece.sum) hold = false;
    }
  });
  return hold;
}

json ranges_of(const WeightPart& part) {
  return {part.rows, part.cols, part.of_rows.begin, part.of_rows.end, part.of_cols.begin, part.of_cols.end};
}

/// Elements of a matrix are counted in 64 bits wherever it is used.
constexpr std::int64_t kExtentMost = std::int64_t{1} << 31;

std::optional<WeightPart> part_of(const json& ranges) {
  if (!ranges.is_array() || ranges.size() != 6) return std::nullopt;
  std::int64_t at[6];
  for (std::size_t i = 0; i < 6; ++i) {
    if (!ranges[i].is_number_unsigned() || ranges[i].get<std::uint64_t>() > kExtentMost) return std::nullopt;
    at[i] = ranges[i].get<std::int64_t>();
  }
  const WeightPart part{.rows = at[0], .cols = at[1], .of_rows = {at[2], at[3]}, .of_cols = {at[4], at[5]}};
  if (part.empty() || part.of_rows.end > part.rows || part.of_cols.end > part.cols) return std::nullopt;
  return part;
}

std::optional<std::uint64_t> number_at(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

std::uint64_t stored_bytes(DType type, const WeightPart& part) {
  const auto row = row_bytes(type, static_cast<std::uint64_t>(part.of_cols.size()));
  return row ? *row * static_cast<std::uint64_t>(part.of_rows.size()) : 0;
}

/// Of an entry whose bytes are among `data`; nothing where anything about it is impossible.
std::optional<PackedEntry> read_entry(const json& entry, ByteSpan data, std::vector<Piece>& pieces) {
  if (!entry.is_object()) return std::nullopt;
  PackedEntry read;
  const auto ranges = entry.find("part");
  const auto part = ranges == entry.end() ? std::nullopt : part_of(*ranges);
  const auto type = number_at(entry, "type"), at = number_at(entry, "at"), bytes = number_at(entry, "bytes");
  const auto packed = entry.find("packed"), sums = entry.find("sums");
  if (!part || !type || !at || !bytes || packed == entry.end() || !packed->is_boolean()) return std::nullopt;
  if (*type >= static_cast<std::uint64_t>(kDTypes) || *at % kPackedAlignment != 0) return std::nullopt;
  if (*at > data.size() || *bytes > data.size() - *at) return std::nullopt;
  read = {.part = *part, .packed = *packed, .type = static_cast<DType>(*type), .bytes = data.subspan(*at, *bytes)};
  if (!row_bytes(read.type, static_cast<std::uint64_t>(part->of_cols.size()))) return std::nullopt;
  if (!read.packed && stored_bytes(read.type, *part) != *bytes) return std::nullopt;
  if (read.packed && !PackedMatrix::over(read.type, part->of_rows.size(), part->of_cols.size(), read.bytes, nullptr)) {
    return std::nullopt;
  }
  if (sums == entry.end() || !sums->is_array() || sums->size() != (*bytes + kPieceBytes - 1) / kPieceBytes) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < sums->size(); ++i) {
    if (!(*sums)[i].is_number_unsigned()) return std::nullopt;
    const std::uint64_t begin = i * kPieceBytes;
    pieces.push_back({.bytes = read.bytes.subspan(begin, std::min(kPieceBytes, *bytes - begin)),
                      .sum = (*sums)[i].get<std::uint32_t>()});
  }
  return read;
}

}  // namespace

Result<std::shared_ptr<const PackedPart>> PackedPart::open(const std::string& path, ThreadTeam& team, PartCheck check) {
  BF_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  file->read_ahead();
  return read(file->bytes(), file, path, team, check);
}

Result<std::shared_ptr<const PackedPart>> PackedPart::read(ByteSpan bytes, std::shared_ptr<const void> owner,
                                                           const std::string& path, ThreadTeam& team, PartCheck check) {
  const auto part = std::make_shared<PackedPart>();
  part->path_ = path;
  part->owner_ = std::move(owner);
  Preamble preamble{};
  if (bytes.size() < sizeof(preamble)) return damaged(path, "is too short to hold packed weights");
  std::memcpy(&preamble, bytes.data(), sizeof(preamble));
  if (std::memcmp(preamble.magic, kPackedMagic, sizeof(kPackedMagic)) != 0 || preamble.version != kPackedVersion) {
    return damaged(path, "holds no packed weights of this version");
  }
  if (preamble.index_at > bytes.size() || preamble.index_bytes != bytes.size() - preamble.index_at) {
    return damaged(path, "ends before its index does");
  }
  const ByteSpan index = bytes.subspan(preamble.index_at, preamble.index_bytes);
  if (crc32c(index) != preamble.index_checksum) return damaged(path, "has an index that is damaged");
  const json entries = parse_json(as_text(index));
  if (!entries.is_object()) return damaged(path, "has an index that is no JSON object");
  std::vector<Piece> pieces;
  for (const auto& [name, entry] : entries.items()) {
    const auto read = read_entry(entry, bytes.first(preamble.index_at), pieces);
    if (!read) return damaged(path, fmt::format("has an impossible entry for {}", name));
    part->entries_[name] = *read;
  }
  if (check == PartCheck::kBytes && !all_hold(pieces, team))
    return damaged(path, "is damaged: a checksum does not hold");
  return part;
}

std::vector<WeightInfo> PackedPart::list() const {
  std::vector<WeightInfo> all;
  for (const auto& [name, entry] : entries_) {
    all.push_back({.name = name, .type = entry.type, .rows = entry.part.rows, .cols = entry.part.cols});
  }
  return all;
}

Result<WeightView> PackedPart::find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return make_error(ErrorCode::kNotFound, "{} has no {}", description(), name);
  const WeightPart& part = found->second.part;
  if (part != WeightPart::all(part.rows, part.cols)) {
    return make_error(ErrorCode::kInvalidArgument, "{} has a part of {} alone", description(), name);
  }
  return find_part(name, part);
}

Result<WeightView> PackedPart::find_part(const std::string& name, const WeightPart& part) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.part != part || found->second.packed) {
    return make_error(ErrorCode::kNotFound, "{} has no such part of {}", description(), name);
  }
  return WeightView{.type = found->second.type,
                    .rows = part.of_rows.size(),
                    .cols = part.of_cols.size(),
                    .bytes = found->second.bytes,
                    .owner = owner_};
}

std::optional<PackedMatrix> PackedPart::find_packed(const std::string& name, const WeightPart& part) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.part != part || !found->second.packed) return std::nullopt;
  return PackedMatrix::over(found->second.type, part.of_rows.size(), part.of_cols.size(), found->second.bytes, owner_);
}

Result<WeightView> PackedRecorder::find_part(const std::string& name, const WeightPart& part) const {
  BF_ASSIGN_OR_RETURN(WeightView view, source_->find_part(name, part));
  answers_[name] = {.entry = {.part = part, .type = view.type, .bytes = view.bytes}, .view = view};
  return view;
}

void PackedRecorder::was_packed(const std::string& name, const WeightPart& part, const PackedMatrix& matrix) const {
  answers_[name] = {.entry = {.part = part, .packed = true, .type = matrix.stored_type(), .bytes = matrix.packed()}};
}

namespace {

class PartWriter {
 public:
  explicit PartWriter(const std::string& path) : file_(path) {}

  Status open() {
    BF_TRY(file_.open());
    return pad(sizeof(Preamble));
  }

  Status add(const std::string& name, const PackedEntry& entry) {
    BF_TRY(pad(0));
    index_[name] = {{"part", ranges_of(entry.part)},        {"packed", entry.packed},
                    {"type", static_cast<int>(entry.type)}, {"at", at_},
                    {"bytes", entry.bytes.size()},          {"sums", checksums(entry.bytes)}};
    return write(entry.bytes);
  }

  Status commit() {
    const std::string text = dump_json(index_);
    Preamble preamble{.magic = {},
                      .version = kPackedVersion,
                      .index_checksum = crc32c(as_bytes(text)),
                      .index_at = at_,
                      .index_bytes = text.size()};
    std::memcpy(preamble.magic, kPackedMagic, sizeof(kPackedMagic));
    BF_TRY(write(as_bytes(text)));
    BF_TRY(file_.overwrite(0, reinterpret_cast<const char*>(&preamble), sizeof(preamble)));
    return file_.commit();
  }

 private:
  Status write(ByteSpan bytes) {
    at_ += bytes.size();
    return file_.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  /// Zeros, at least `least` bytes of them, to where data may begin.
  Status pad(std::uint64_t least) {
    const std::uint64_t end = (at_ + least + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    return write(std::vector<std::byte>(end - at_));
  }

  PendingFile file_;
  json index_ = json::object();
  std::uint64_t at_ = 0;
};

}  // namespace

Status PackedRecorder::write(const std::string& path) const {
  PartWriter writer(path);
  BF_TRY(writer.open());
  for (const auto& [name, answer] : answers_) {
    PackedEntry entry = answer.entry;
    std::vector<std::byte> rows;
    if (!entry.packed && answer.view.stride != 0) {
      const MatrixView matrix = answer.view.matrix();
      const std::uint64_t wide = *row_bytes(matrix.type, static_cast<std::uint64_t>(matrix.cols));
      for (std::int64_t row = 0; row < matrix.rows; ++row) {
        const ByteSpan one = matrix.bytes.subspan(static_cast<std::uint64_t>(row) * matrix.stride, wide);
        rows.insert(rows.end(), one.begin(), one.end());
      }
      entry.bytes = rows;
    }
    BF_TRY(writer.add(name, entry));
  }
  return writer.commit();
}

}  // namespace butterfly
