#include "butterfly/serve/http/api_keys.h"

#include "butterfly/wire/enrolment/secret_files.h"

namespace butterfly {
namespace {

constexpr std::size_t kKeyBytesMin = 8;

Sha256 digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

Result<ApiKeys> ApiKeys::read(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_file(path, FileAccess::kOwnerOnly));
  ApiKeys keys;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const std::size_t colon = line.find(':');
    const std::string name = colon == std::string::npos ? fmt::format("key-{}", number) : line.substr(0, colon);
    const std::string key = colon == std::string::npos ? line : line.substr(colon + 1);
    if (key.size() < kKeyBytesMin) {
      return make_error(ErrorCode::kInvalidArgument, "{}: the key on line {} has {} characters, at least {} are needed",
                        path, number, key.size(), kKeyBytesMin);
    }
    keys.keys_.push_back({name, digest_of(key)});
  }
  if (keys.empty()) return make_error(ErrorCode::kInvalidArgument, "{}: has no key", path);
  return keys;
}

std::optional<std::string> ApiKeys::user_of(const std::string& authorization) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (!std::string_view(authorization).starts_with(kBearer)) return std::nullopt;
  const Sha256 given = digest_of(std::string_view(authorization).substr(kBearer.size()));
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    std::byte difference{};
    for (std::size_t i = 0; i < given.size(); ++i) difference |= given[i] ^ key.digest[i];
    if (difference == std::byte{}) found = &key;
  }
  if (found == nullptr) return std::nullopt;
  return found->name;
}

}  // namespace butterfly
