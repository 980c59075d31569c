#include "butterfly/text/steps/charsmap.h"

#include <cstring>

#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

// A unit of Darts: bits 0-7 the label (bit 31 marks a value instead), bit 8 whether a value follows, bit 9 whether the
// offset counts in 256s, bits 10-31 the offset.
std::uint32_t unit_label(std::uint32_t unit) {
  return unit & ((std::uint32_t{1} << 31) | 0xFF);
}
std::uint32_t unit_offset(std::uint32_t unit) {
  return (unit >> 10) << ((unit & (std::uint32_t{1} << 9)) >> 6);
}
constexpr std::uint32_t kIsValue = std::uint32_t{1} << 31;

bool unit_has_value(std::uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}

}  // namespace

Result<Charsmap> Charsmap::create(std::string_view blob) {
  Charsmap result;
  if (blob.empty()) {
    result.settle();
    return result;
  }
  std::uint32_t bytes = 0;
  if (blob.size() >= sizeof bytes) std::memcpy(&bytes, blob.data(), sizeof bytes);
  if (blob.size() < sizeof bytes || bytes % 4 != 0 || bytes == 0 || bytes > blob.size() - sizeof bytes) {
    return make_error(ErrorCode::kBadData, "the table of characters says its index has {} bytes, it has {} in all",
                      bytes, blob.size());
  }
  result.units_.resize(bytes / 4);
  std::memcpy(result.units_.data(), blob.data() + sizeof bytes, bytes);
  result.replacements_ = blob.substr(sizeof bytes + bytes);
  result.check_replacements();
  result.settle();
  return result;
}

void Charsmap::check_replacements() {
  is_text_ = !find_invalid_utf8(replacements_);
  for (const std::uint32_t unit : units_) {
    const std::size_t begin = unit & ~kIsValue;
    const bool value = (unit & kIsValue) != 0 && begin < replacements_.size();
    if (value && (replacements_[begin] & 0xC0) == 0x80) is_text_ = false;
  }
}

void Charsmap::settle() {
  settle_characters();
  constexpr std::uint32_t kAscii = 0x80;
  for (std::uint32_t byte = 0; byte < kAscii; ++byte) {
    settled_[byte] = true;
    if (units_.empty() || byte == 0) continue;
    const std::size_t place = unit_offset(units_[0]) ^ byte;
    if (place >= units_.size() || unit_label(units_[place]) != byte) continue;
    const std::size_t children = place ^ unit_offset(units_[place]);
    bool settled = !unit_has_value(units_[place]);
    for (std::uint32_t next = 1; next < kAscii && settled; ++next) {
      settled = (children ^ next) >= units_.size() || unit_label(units_[children ^ next]) != next;
    }
    settled_[byte] = settled;
  }
}

/// Whether a sequence may begin with all of `bytes`.
bool Charsmap::begins(std::string_view bytes) const {
  if (units_.empty()) return false;
  std::size_t place = unit_offset(units_[0]);
  for (const char next : bytes) {
    const auto byte = static_cast<unsigned char>(next);
    place ^= byte;
    if (place >= units_.size() || unit_label(units_[place]) != byte) return false;
    place ^= unit_offset(units_[place]);
  }
  return true;
}

void Charsmap::settle_characters() {
  std::string bytes;
  for (char32_t c = 0x80; c < kKnownMax; ++c) {
    bytes.clear();
    append_utf8(bytes, c);
    if (!begins(bytes)) settled_characters_[c / 64] |= std::uint64_t{1} << (c % 64);
  }
}

Charsmap::Match Charsmap::match(std::string_view text, Which which) const {
  Match best;
  if (units_.empty()) return best;
  std::size_t place = unit_offset(units_[0]);
  for (std::size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    if (place >= units_.size() || unit_label(units_[place]) != byte) break;
    const std::uint32_t unit = units_[place];
    place ^= unit_offset(unit);
    if (!unit_has_value(unit)) continue;
    if (place >= units_.size() || (units_[place] & kIsValue) == 0) break;
    const std::size_t begin = units_[place] & ~kIsValue;
    if (begin > replacements_.size()) break;
    const std::size_t end = replacements_.find('\0', begin);
    const std::size_t size = end == std::string::npos ? replacements_.size() - begin : end - begin;
    best = {i + 1, std::string_view(replacements_).substr(begin, size)};
    if (which == Which::kShortest) break;
  }
  return best;
}

}  // namespace butterfly
