#include "butterfly/model/format/safetensors/safetensors.h"

#include <algorithm>
#include <set>

#include "butterfly/base/json.h"
#include "butterfly/base/text/printable.h"

namespace butterfly {
namespace {

using nlohmann::json;

// The largest models list some thousand tensors of about 100 bytes each in a shard.
constexpr std::uint64_t kMaxHeaderBytes = 32 << 20;
constexpr std::size_t kMaxDims = 8;

struct TypeInfo {
  const char* name;
  std::uint64_t bytes;
  std::optional<DType> type;
};
constexpr TypeInfo kTypes[] = {
    {"F32", 4, DType::kF32}, {"F16", 2, DType::kF16}, {"BF16", 2, DType::kBF16},
    {"F64", 8, {}},          {"I64", 8, {}},          {"I32", 4, {}},
    {"I16", 2, {}},          {"I8", 1, {}},           {"U64", 8, {}},
    {"U32", 4, {}},          {"U16", 2, {}},          {"U8", 1, {}},
    {"BOOL", 1, {}},         {"F8_E4M3", 1, {}},      {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

/// Parses an object; a key that occurs twice at the top is an error, which a plain parse would hide.
Result<json> parse_header(std::string_view text, const std::string& source) {
  std::set<std::string> seen;
  std::string twice;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth == 1 && event == json::parse_event_t::key && !seen.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  json header = parse_json(text, watch);
  if (!header.is_object()) {
    return make_error(ErrorCode::kBadData, "{}: the header of {} bytes is no JSON object", source, text.size());
  }
  if (!twice.empty()) return make_error(ErrorCode::kBadData, "{}: has the tensor {} twice", source, printable(twice));
  return header;
}

Result<std::uint64_t> number_of(const json& value, const std::string& what) {
  if (!value.is_number_unsigned()) {
    return make_error(ErrorCode::kBadData, "{} is {}, expected an integer of at least 0", what, value.type_name());
  }
  return value.get<std::uint64_t>();
}

struct Place {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Result<Place> read_place(const json& entry, const std::string& what) {
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    return make_error(ErrorCode::kBadData, "{} lacks data_offsets, a list of two integers", what);
  }
  Place place;
  BF_ASSIGN_OR_RETURN(place.begin, number_of((*offsets)[0], what + " data_offsets[0]"));
  BF_ASSIGN_OR_RETURN(place.end, number_of((*offsets)[1], what + " data_offsets[1]"));
  return place;
}

Result<SafetensorsEntry> read_entry(const json& entry, const Place& place, const std::string& what) {
  SafetensorsEntry result;
  const auto dtype = entry.find("dtype");
  const auto shape = entry.find("shape");
  if (dtype == entry.end() || !dtype->is_string())
    return make_error(ErrorCode::kBadData, "{} lacks dtype, a string", what);
  if (shape == entry.end() || !shape->is_array() || shape->size() > kMaxDims) {
    return make_error(ErrorCode::kBadData, "{} lacks shape, a list of up to {} integers", what, kMaxDims);
  }
  result.type_name = dtype->get<std::string>();
  std::optional<std::uint64_t> elements = 1;
  for (const json& extent : *shape) {
    BF_ASSIGN_OR_RETURN(const std::uint64_t value, number_of(extent, what + " shape"));
    if (elements) elements = checked_multiply(*elements, value);
    if (value > static_cast<std::uint64_t>(INT64_MAX)) elements.reset();
    result.shape.push_back(static_cast<std::int64_t>(value));
  }
  const auto* info =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeInfo& t) { return result.type_name == t.name; });
  const bool known = info != std::end(kTypes);
  if (known) result.type = info->type;
  const auto bytes = elements ? checked_multiply(*elements, known ? info->bytes : 0) : std::nullopt;
  if (!bytes) return make_error(ErrorCode::kBadData, "{} has a shape whose size overflows 64 bits", what);
  if (known && *bytes != place.end - place.begin) {
    return make_error(ErrorCode::kBadData, "{} has {} bytes of data, its shape of {} takes {}", what,
                      place.end - place.begin, result.type_name, *bytes);
  }
  return result;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(ByteSpan bytes, std::string source) {
  ByteReader reader(bytes);
  const auto length = reader.read<std::uint64_t>();
  if (!length)
    return make_error(ErrorCode::kBadData, "{}: is {} bytes long, too short for a safetensors file", source,
                      bytes.size());
  const std::uint64_t header_max = std::min<std::uint64_t>(kMaxHeaderBytes, reader.remaining());
  if (*length > header_max) {
    return make_error(ErrorCode::kBadData, "{}: claims a header of {} bytes, expected at most {}", source, *length,
                      header_max);
  }
  BF_ASSIGN_OR_RETURN(const json header, parse_header(as_text(*reader.take(*length)), source));
  const ByteSpan data = bytes.subspan(reader.position());
  SafetensorsFile file;
  std::vector<std::pair<Place, std::string>> places;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string what = fmt::format("{}: {}", source, printable(name));
    if (!entry.is_object())
      return make_error(ErrorCode::kBadData, "{} is {}, expected an object", what, entry.type_name());
    BF_ASSIGN_OR_RETURN(const Place place, read_place(entry, what));
    if (place.begin > place.end || place.end > data.size()) {
      return make_error(ErrorCode::kBadData, "{} lies at bytes {} to {}, the file has {}", what, place.begin, place.end,
                        data.size());
    }
    BF_ASSIGN_OR_RETURN(SafetensorsEntry parsed, read_entry(entry, place, what));
    parsed.bytes = data.subspan(place.begin, place.end - place.begin);
    file.entries_.emplace(name, std::move(parsed));
    places.emplace_back(place, name);
  }
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  std::uint64_t end = 0;
  for (const auto& [place, name] : places) {
    if (place.begin != end) {
      return make_error(ErrorCode::kBadData, "{}: the data of {} begin at {}, where the tensor before ends at {}",
                        source, printable(name), place.begin, end);
    }
    end = place.end;
  }
  if (end != data.size()) {
    return make_error(ErrorCode::kBadData, "{}: has {} bytes of data, its header describes {}", source, data.size(),
                      end);
  }
  file.source_ = std::move(source);
  return file;
}

}  // namespace butterfly
