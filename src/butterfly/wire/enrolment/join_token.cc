#include "butterfly/wire/enrolment/join_token.h"

#include <algorithm>
#include <cstring>

#include "butterfly/base/bytes.h"
#include "butterfly/base/hash/crc32c.h"
#include "butterfly/base/hash/digest.h"

namespace butterfly {
namespace {

constexpr std::string_view kPrefix = "bf1-";
constexpr std::size_t kSecretAt = 0;
constexpr std::size_t kAuthorityAt = kSecretAt + std::tuple_size_v<TokenSecret>;
constexpr std::size_t kExpiresAt = kAuthorityAt + std::tuple_size_v<Fingerprint>;
constexpr std::size_t kChecksumAt = kExpiresAt + 8;  // of all before it: a slip of the hand is said as such
constexpr std::size_t kJoinTokenBytes = kChecksumAt + 4;

using TokenBytes = std::array<std::byte, kJoinTokenBytes>;

}  // namespace

std::string encode_token(const JoinToken& token) {
  TokenBytes bytes{};
  std::ranges::copy(token.secret, bytes.begin() + kSecretAt);
  std::ranges::copy(token.authority, bytes.begin() + kAuthorityAt);
  store_number(bytes, kExpiresAt, static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(token.expires)), 8);
  store_number(bytes, kChecksumAt, crc32c(ByteSpan(bytes).first(kChecksumAt)), 4);
  return std::string(kPrefix) + to_hex(bytes);
}

Result<JoinToken> decode_token(std::string_view text) {
  constexpr std::size_t kTextBytes = kPrefix.size() + 2 * kJoinTokenBytes;
  if (!text.starts_with(kPrefix) || text.size() != kTextBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no join token: {} characters, expected {} that begin with {} (`butterfly cluster token` prints "
                      "one)",
                      text.size(), kTextBytes, kPrefix);
  }
  const auto said = from_hex(text.substr(kPrefix.size()));
  if (!said) {
    return make_error(ErrorCode::kInvalidArgument, "a join token with other characters than 0-9 and a-f in it");
  }
  TokenBytes bytes{};
  std::ranges::copy(*said, bytes.begin());
  const auto announced = load_number(bytes, kChecksumAt, 4);
  if (const std::uint64_t actual = crc32c(ByteSpan(bytes).first(kChecksumAt)); actual != announced) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a join token with checksum {:08x}, its content has {:08x}: was it copied as a whole?", announced,
                      actual);
  }
  constexpr std::uint64_t kLatest = 253'402'300'799;  // the end of the year 9999
  const std::uint64_t expires = load_number(bytes, kExpiresAt, 8);
  if (expires > kLatest) {
    return make_error(ErrorCode::kInvalidArgument, "a join token that expires {} seconds after 1970, the last is {}",
                      expires, kLatest);
  }
  JoinToken token;
  std::copy_n(bytes.begin() + kSecretAt, token.secret.size(), token.secret.begin());
  std::copy_n(bytes.begin() + kAuthorityAt, token.authority.size(), token.authority.begin());
  token.expires = std::chrono::system_clock::from_time_t(static_cast<std::time_t>(expires));
  return token;
}

}  // namespace butterfly
