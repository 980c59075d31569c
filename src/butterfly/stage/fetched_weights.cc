#include "butterfly/stage/fetched_weights.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {

namespace {

/// What another range does not have of this one.
std::vector<IndexRange> without(const IndexRange& wanted, const IndexRange& held) {
  if (held.end <= wanted.begin || held.begin >= wanted.end) return {wanted};
  std::vector<IndexRange> rest;
  if (wanted.begin < held.begin) rest.push_back({wanted.begin, held.begin});
  if (held.end < wanted.end) rest.push_back({held.end, wanted.end});
  return rest;
}

/// A weight is divided along its rows or along its columns: two parts of it differ in one of them.
std::vector<WeightPart> without(const WeightPart& wanted, const WeightPart& held) {
  std::vector<WeightPart> rest;
  if (held.of_cols == wanted.of_cols) {
    for (const IndexRange& rows : without(wanted.of_rows, held.of_rows)) {
      rest.push_back({wanted.rows, wanted.cols, rows, wanted.of_cols});
    }
  } else if (held.of_rows == wanted.of_rows) {
    for (const IndexRange& cols : without(wanted.of_cols, held.of_cols)) {
      rest.push_back({wanted.rows, wanted.cols, wanted.of_rows, cols});
    }
  } else {
    rest.push_back(wanted);
  }
  return rest;
}

IndexRange common(const IndexRange& a, const IndexRange& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}
IndexRange moved(const IndexRange& range, std::int64_t by) {
  return {range.begin + by, range.end + by};
}

std::uint64_t size_of_row(DType type, std::int64_t cols) {
  return *row_bytes(type, static_cast<std::uint64_t>(cols));
}

/// Where rows and columns of the weight begin in the bytes of `part`, whose rows touch.
std::size_t offset(const WeightPart& part, DType type, std::int64_t row, std::int64_t col) {
  return static_cast<std::size_t>(row - part.of_rows.begin) * size_of_row(type, part.of_cols.size()) +
         size_of_row(type, col - part.of_cols.begin);
}

/// The piece, in the type that its own is computed as.
NamedBytes re_expressed(const NamedBytes& piece) {
  const auto type = static_cast<DType>(piece.type);
  const DType computing = computing_type(type);
  const std::uint64_t from = size_of_row(type, piece.cols);
  const std::uint64_t to = size_of_row(computing, piece.cols);
  const auto rows = static_cast<std::uint64_t>(piece.rows);
  const auto memory = std::make_shared<std::vector<std::byte>>(to * rows);
  for (std::uint64_t row = 0; row < rows; ++row) {
    to_computing_type(type, piece.bytes.subspan(row * from, from), {0, piece.cols},
                      MutableByteSpan(*memory).subspan(row * to, to));
  }
  NamedBytes result = piece;
  result.type = static_cast<std::uint32_t>(computing);
  result.bytes = *memory;
  result.owner = memory;
  return result;
}

/// rows x row bytes, from one stride to another.
void copy_rows(std::int64_t rows, std::size_t row, const std::byte* from, std::size_t from_stride, std::byte* to,
               std::size_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) std::memcpy(to, from, row);
}

}  // namespace

FetchedWeights::FetchedWeights(const ModelConfig& config, const StageAssignment& assignment, WeightFetcher& fetcher,
                               std::map<std::string, KeptMatrix> kept)
    : fetcher_(&fetcher), kept_(std::move(kept)) {
  const auto add = [&](const WeightRange& range, std::size_t group_max) {
    bool full = true;
    for (ExpectedPart& expected : expected_parts(config, range, assignment.slices)) {
      // The head of a tied model is the embedding: one copy where a node has both.
      if (places_.contains(expected.whole.name)) continue;
      if (full) groups_.emplace_back();
      places_[expected.whole.name] = {groups_.size() - 1, groups_.back().size()};
      groups_.back().push_back(std::move(expected));
      full = groups_.back().size() >= group_max;
    }
  };
  // Embedding and LM head weight by weight: a head that is tied to an embedding which is here asks for its norm only.
  if (assignment.embedding) add({.embedding = true}, 1);
  for (int layer = assignment.first_layer; layer < assignment.last_layer; ++layer)
    add({.first_layer = layer, .last_layer = layer + 1}, std::numeric_limits<std::size_t>::max());
  if (assignment.head) add({.head = true}, 1);
}

std::vector<WeightInfo> FetchedWeights::list() const {
  std::vector<WeightInfo> all;
  for (const auto& group : groups_) {
    for (const ExpectedPart& expected : group) all.push_back(expected.whole);
  }
  return all;
}

bool FetchedWeights::contains(const std::string& name) const {
  return places_.contains(name);
}

Status FetchedWeights::fetch_group(std::size_t group) const {
  std::vector<WeightRequest> wanted;
  for (const ExpectedPart& expected : groups_[group]) {
    for (const WeightPart& piece : pieces_of(expected)) {
      // The stored type is the coordinator's to say; no type needs more than 4 bytes an element.
      const auto elements =
          static_cast<std::uint64_t>(piece.of_rows.size()) * static_cast<std::uint64_t>(piece.of_cols.size());
      wanted.push_back({.name = expected.whole.name, .part = piece, .bytes_max = 4 * elements});
    }
  }
  std::size_t taken = 0;
  return fetcher_->fetch(wanted, [&](const std::string& name, NamedBytes weight) {
    return take(name, wanted[taken++].part, std::move(weight));
  });
}

/// What has to be fetched; what is kept is put in its place at once.
std::vector<WeightPart> FetchedWeights::pieces_of(const ExpectedPart& expected) const {
  const WeightPart& part = expected.part;
  const auto kept = kept_.find(expected.whole.name);
  if (kept == kept_.end()) return {part};
  const auto& [matrix, held] = kept->second;
  const std::vector<WeightPart> missing = without(part, held);
  if (missing == std::vector<WeightPart>{part}) return missing;
  const DType type = matrix->type();
  const std::uint64_t row = size_of_row(type, part.of_cols.size());
  const auto memory = std::make_shared<std::vector<std::byte>>(row * static_cast<std::uint64_t>(part.of_rows.size()));
  const IndexRange rows = common(part.of_rows, held.of_rows);
  const IndexRange cols = common(part.of_cols, held.of_cols);
  matrix->unpack(moved(rows, -held.of_rows.begin), moved(cols, -held.of_cols.begin),
                 MutableByteSpan(*memory).subspan(offset(part, type, rows.begin, cols.begin)), row);
  waiting_[expected.whole.name] = {.view = {type, part.of_rows.size(), part.of_cols.size(), *memory, memory},
                                   .filling = *memory};
  return missing;
}

Status FetchedWeights::take(const std::string& name, const WeightPart& piece, NamedBytes weight) const {
  if (weight.type >= static_cast<std::uint32_t>(kDTypes) || static_cast<DType>(weight.type) == DType::kI32) {
    return make_error(ErrorCode::kBadData, "{} came with type {}, which this program does not know", name, weight.type);
  }
  const auto type = static_cast<DType>(weight.type);
  if (weight.rows != piece.of_rows.size() || weight.cols != piece.of_cols.size()) {
    return make_error(ErrorCode::kBadData, "{} came as {} x {}, {} x {} were asked for (rows x columns)", name,
                      weight.rows, weight.cols, piece.of_rows.size(), piece.of_cols.size());
  }
  const auto row = row_bytes(type, static_cast<std::uint64_t>(weight.cols));
  if (!row || checked_multiply(*row, static_cast<std::uint64_t>(weight.rows)) != weight.bytes.size()) {
    return make_error(ErrorCode::kBadData, "{} came as {} x {} {} with {} bytes", name, weight.rows, weight.cols,
                      to_string(type), weight.bytes.size());
  }
  const auto begun = waiting_.find(name);
  if (begun == waiting_.end()) {
    waiting_[name] = {.view = {type, weight.rows, weight.cols, weight.bytes, std::move(weight.owner)}};
    return {};
  }
  const auto& [view, filling] = begun->second;
  // What is here of it was unpacked, in the type that it is computed as.
  if (type != view.type && computing_type(type) == view.type) return take(name, piece, re_expressed(weight));
  if (type != view.type) {
    return make_error(ErrorCode::kBadData, "{} came as {}, what is here of it is {}", name, to_string(type),
                      to_string(view.type));
  }
  const WeightPart& part = at(places_.at(name)).part;
  copy_rows(weight.rows, *row, weight.bytes.data(), *row,
            filling.data() + offset(part, type, piece.of_rows.begin, piece.of_cols.begin),
            size_of_row(type, view.cols));
  return {};
}

Result<WeightView> FetchedWeights::find(const std::string& name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) return make_error(ErrorCode::kNotFound, "{} is no weight of this stage", name);
  const WeightInfo& whole = at(place->second).whole;
  return find_part(name, WeightPart::all(whole.rows, whole.cols));
}

Result<WeightView> FetchedWeights::find_part(const std::string& name, const WeightPart& part) const {
  const auto place = places_.find(name);
  if (place == places_.end()) return make_error(ErrorCode::kNotFound, "{} is no weight of this stage", name);
  const WeightPart& held = at(place->second).part;
  if (held != part) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} has rows {} to {} and columns {} to {} here, {} to {} and {} to {} were asked for", name,
                      held.of_rows.begin, held.of_rows.end, held.of_cols.begin, held.of_cols.end, part.of_rows.begin,
                      part.of_rows.end, part.of_cols.begin, part.of_cols.end);
  }
  if (!waiting_.contains(name)) BF_TRY(fetch_group(place->second.group));
  const auto found = waiting_.find(name);
  if (found == waiting_.end()) return make_error(ErrorCode::kNotFound, "{} did not come from the coordinator", name);
  WeightView view = std::move(found->second.view);
  waiting_.erase(found);
  return view;
}

namespace {

/// Rows that lie apart become rows that touch.
WeightView gathered(const WeightView& view) {
  const std::uint64_t row = size_of_row(view.type, view.cols);
  const auto memory = std::make_shared<std::vector<std::byte>>(static_cast<std::uint64_t>(view.rows) * row);
  copy_rows(view.rows, row, view.bytes.data(), view.stride, memory->data(), row);
  return {view.type, view.rows, view.cols, *memory, memory};
}

}  // namespace

WeightProvider provide_weights(std::shared_ptr<const WeightSource> source) {
  return [source = std::move(source)](const std::string& name, const WeightPart& part) -> Result<NamedBytes> {
    BF_ASSIGN_OR_RETURN(WeightView view, source->find_part(name, part));
    if (view.stride != 0) view = gathered(view);
    NamedBytes weight;
    weight.type = static_cast<std::uint32_t>(view.type);
    weight.rows = view.rows;
    weight.cols = view.cols;
    weight.bytes = view.bytes;
    weight.owner = view.owner ? std::move(view.owner) : std::static_pointer_cast<const void>(source);
    return weight;
  };
}

}  // namespace butterfly
