#include "butterfly/model/format/tokenizer/sentencepiece_model.h"

#include <algorithm>

#include "butterfly/base/text/printable.h"
#include "butterfly/model/format/tokenizer/protobuf_fields.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

// Field numbers of sentencepiece_model.proto.
enum ModelField : std::uint32_t { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3 };
enum PieceField : std::uint32_t { kPieceText = 1, kPieceScore = 2, kPieceType = 3 };
enum TrainerField : std::uint32_t {
  kModelType = 3,
  kSpacesAsSuffix = 24,
  kByteFallback = 35,
  kUnknownId = 40,
  kFirstId = 41,
  kLastId = 42
};
enum NormalizerField : std::uint32_t { kCharsmapBytes = 2, kDummyPrefix = 3, kCollapseSpaces = 4, kEscapeSpaces = 5 };
enum ModelType : std::uint64_t { kUnigramModel = 1, kBpeModel = 2, kWordModel = 3, kCharacterModel = 4 };

/// Calls `read(field)` for each field of a message.
template <typename Read>
Status for_each_field(std::string_view message, const Read& read) {
  ProtobufFields fields(message);
  while (true) {
    BF_ASSIGN_OR_RETURN(const auto field, fields.next());
    if (!field) return {};
    BF_TRY(read(*field));
  }
}

class SentencePieceReader {
 public:
  Result<Vocabulary> read(std::string_view bytes) {
    BF_TRY(for_each_field(bytes, [&](const ProtobufField& field) -> Status {
      if (field.number == kPieces) return read_piece(field.bytes);
      if (field.number == kTrainerSpec) return read_trainer(field.bytes);
      if (field.number == kNormalizerSpec) return read_normalizer(field.bytes);
      return {};
    }));
    if (out_.pieces.empty()) return make_error(ErrorCode::kBadData, "the SentencePiece model has no pieces");
    out_.user_defined_inside = true;
    read_special_ids();
    BF_TRY(set_kind());
    add_known_end_tokens(out_);
    return std::move(out_);
  }

 private:
  Status read_piece(std::string_view message);
  Status read_trainer(std::string_view message);
  Status read_normalizer(std::string_view message);
  void read_special_ids();
  Status set_kind();

  Vocabulary out_;
  std::uint64_t model_ = kUnigramModel;
  NormalizerStep spaces_{.kind = NormalizerStep::Kind::kSentencePiece,
                         .space_prefix = true,
                         .collapse_spaces = true,
                         .escape_spaces = true};
  bool spaces_as_suffix_ = false;
  std::int64_t unknown_ = 0;
  std::int64_t first_ = 1;
  std::int64_t last_ = 2;
};

Status SentencePieceReader::read_piece(std::string_view message) {
  std::string piece;
  float score = 0;
  std::uint64_t type = static_cast<std::uint64_t>(TokenType::kNormal);
  BF_TRY(for_each_field(message, [&](const ProtobufField& field) -> Status {
    if (field.number == kPieceText) piece = field.bytes;
    if (field.number == kPieceScore) score = field.as_float();
    if (field.number == kPieceType) type = field.value;
    return {};
  }));
  if (type < 1 || type > static_cast<std::uint64_t>(TokenType::kByte)) {
    return make_error(ErrorCode::kBadData, "piece {} has the type {}, types are 1 to {}", out_.pieces.size(), type,
                      static_cast<int>(TokenType::kByte));
  }
  if (find_invalid_utf8(piece)) {
    return make_error(ErrorCode::kBadData, "piece {} is not valid UTF-8: \"{}\"", out_.pieces.size(), printable(piece));
  }
  out_.pieces.push_back(std::move(piece));
  out_.scores.push_back(score);
  out_.types.push_back(static_cast<TokenType>(type));
  return {};
}

Status SentencePieceReader::read_trainer(std::string_view message) {
  return for_each_field(message, [&](const ProtobufField& field) -> Status {
    const auto number = static_cast<std::int64_t>(field.value);
    if (field.number == kModelType) model_ = field.value;
    if (field.number == kSpacesAsSuffix) spaces_as_suffix_ = field.flag();
    if (field.number == kByteFallback) out_.byte_fallback = field.flag();
    if (field.number == kUnknownId) unknown_ = number;
    if (field.number == kFirstId) first_ = number;
    if (field.number == kLastId) last_ = number;
    return {};
  });
}

Status SentencePieceReader::read_normalizer(std::string_view message) {
  return for_each_field(message, [&](const ProtobufField& field) -> Status {
    if (field.number == kCharsmapBytes) spaces_.content = field.bytes;
    if (field.number == kDummyPrefix) spaces_.space_prefix = field.flag();
    if (field.number == kCollapseSpaces) spaces_.collapse_spaces = field.flag();
    if (field.number == kEscapeSpaces) spaces_.escape_spaces = field.flag();
    return {};
  });
}

/// Ids of the trainer where they name such pieces; models whose pieces were changed later keep old ones.
void SentencePieceReader::read_special_ids() {
  const auto id_of = [&](std::int64_t id, TokenType type) {
    const bool good = id >= 0 && id < out_.size() && out_.types[static_cast<std::size_t>(id)] == type;
    return good ? TokenId{static_cast<std::int32_t>(id)} : TokenId{-1};
  };
  out_.bos = id_of(first_, TokenType::kControl);
  out_.eos = id_of(last_, TokenType::kControl);
  out_.unknown = id_of(unknown_, TokenType::kUnknown);
  const auto unknown = std::ranges::find(out_.types, TokenType::kUnknown);
  if (out_.unknown.value < 0 && unknown != out_.types.end()) {
    out_.unknown = TokenId{static_cast<std::int32_t>(unknown - out_.types.begin())};
  }
  bool any = false;
  for (std::size_t id = 0; id < out_.pieces.size(); ++id) {
    if (out_.types[id] != TokenType::kNormal) continue;
    out_.highest_score = any ? std::max(out_.highest_score, out_.scores[id]) : out_.scores[id];
    any = true;
  }
}

Status SentencePieceReader::set_kind() {
  using Decoder = DecoderStep::Kind;
  const bool prefix = spaces_.space_prefix;
  if (spaces_as_suffix_) {
    spaces_.space_prefix = false;
    spaces_.space_suffix = prefix;
  }
  out_.normalizers = {spaces_};
  out_.add_space_prefix = prefix && !spaces_as_suffix_;
  out_.decoders = {{.kind = Decoder::kReplace, .pattern = std::string(kVisibleSpace), .content = " "},
                   {.kind = Decoder::kByteFallback},
                   {.kind = Decoder::kFuse}};
  if (out_.add_space_prefix) out_.decoders.push_back({.kind = Decoder::kStrip, .content = " ", .left = 1});
  if (spaces_as_suffix_ && prefix) out_.decoders.push_back({.kind = Decoder::kStrip, .content = " ", .right = 1});
  switch (model_) {
    case kUnigramModel:
      out_.kind = TokenizerKind::kUnigram;
      out_.float_scores = true;
      return {};
    case kBpeModel:
    case kCharacterModel:
      out_.kind = TokenizerKind::kSentencePiece;
      out_.decoders.clear();
      return {};
    case kWordModel:
      out_.kind = TokenizerKind::kWordLevel;
      out_.fuse_unknown_words = true;
      out_.pre_tokenizers = {
          {.kind = PreTokenizerStep::Kind::kSplit,
           .pattern = std::string(kVisibleSpace),
           .is_regex = false,
           .behavior = spaces_as_suffix_ ? SplitBehavior::kMergedWithPrevious : SplitBehavior::kMergedWithNext}};
      return {};
    default:
      return make_error(ErrorCode::kUnsupported, "the SentencePiece model has the type {}, known are 1 to 4", model_);
  }
}

}  // namespace

bool looks_like_sentencepiece(std::string_view bytes) {
  // Field 1 of the model is a message, whose field 1 is a text.
  if (bytes.size() < 4 || bytes[0] != '\x0A') return false;
  auto field = ProtobufFields(bytes).next();
  return field && *field && !(*field)->bytes.empty() && (*field)->bytes[0] == '\x0A';
}

Result<Vocabulary> read_sentencepiece_model(std::string_view bytes, const std::string& tokenizer_config_json) {
  BF_ASSIGN_OR_RETURN(Vocabulary vocabulary, SentencePieceReader().read(bytes));
  BF_TRY(apply_tokenizer_config(tokenizer_config_json, vocabulary));
  return vocabulary;
}

}  // namespace butterfly
