#include <algorithm>
#include <cstring>

#include "butterfly/base/bytes.h"
#include "butterfly/wire/enrolment/enrolment.h"

namespace butterfly {
namespace {

constexpr std::array<char, 4> kRequestMagic{'B', 'F', 'e', 'q'};
constexpr std::array<char, 4> kEnrolmentReplyMagic{'B', 'F', 'e', 'r'};
constexpr std::uint8_t kEnrolmentVersion = 1;
constexpr std::size_t kNameBytesMax = 63;

}  // namespace

EnrolHeaderBytes encode_enrol_header(const EnrolHeader& header) {
  EnrolHeaderBytes bytes{};
  std::ranges::copy(header.secret, bytes.begin());
  std::memcpy(bytes.data() + 16, kRequestMagic.data(), kRequestMagic.size());
  store_number(bytes, 20, kEnrolmentVersion, 1);
  store_number(bytes, 21, header.name_bytes, 1);
  store_number(bytes, 22, header.request_bytes, 2);
  return bytes;
}

Result<EnrolHeader> decode_enrol_header(std::span<const std::byte, kEnrolHeaderBytes> bytes) {
  if (std::memcmp(bytes.data() + 16, kRequestMagic.data(), kRequestMagic.size()) != 0) {
    return make_error(ErrorCode::kProtocol, "the connection does not begin with a request of this protocol");
  }
  if (const auto version = load_number(bytes, 20, 1); version != kEnrolmentVersion) {
    return make_error(ErrorCode::kProtocol, "an enrolment of version {}, this program knows {}", version,
                      kEnrolmentVersion);
  }
  EnrolHeader header;
  std::copy_n(bytes.begin(), header.secret.size(), header.secret.begin());
  header.name_bytes = static_cast<std::uint8_t>(load_number(bytes, 21, 1));
  header.request_bytes = static_cast<std::uint16_t>(load_number(bytes, 22, 2));
  if (header.name_bytes > kNameBytesMax) {
    return make_error(ErrorCode::kProtocol, "an enrolment announces a name of {} bytes, the limit is {}",
                      header.name_bytes, kNameBytesMax);
  }
  if (header.request_bytes == 0 || header.request_bytes > kEnrolRequestBytesMax) {
    return make_error(ErrorCode::kProtocol, "an enrolment announces a request of {} bytes, expected 1 to {}",
                      header.request_bytes, kEnrolRequestBytesMax);
  }
  return header;
}

EnrolReplyHeaderBytes encode_enrol_reply_header(const EnrolReplyHeader& header) {
  EnrolReplyHeaderBytes bytes{};
  std::memcpy(bytes.data(), kEnrolmentReplyMagic.data(), kEnrolmentReplyMagic.size());
  store_number(bytes, 4, header.refused ? 1 : 0, 4);
  for (std::size_t i = 0; i < header.sizes.size(); ++i) store_number(bytes, 8 + 4 * i, header.sizes[i], 4);
  return bytes;
}

Result<EnrolReplyHeader> decode_enrol_reply_header(std::span<const std::byte, kEnrolReplyHeaderBytes> bytes) {
  if (std::memcmp(bytes.data(), kEnrolmentReplyMagic.data(), kEnrolmentReplyMagic.size()) != 0) {
    return make_error(ErrorCode::kProtocol, "the answer to the enrolment is not one of this protocol");
  }
  const auto status = load_number(bytes, 4, 4);
  if (status > 1)
    return make_error(ErrorCode::kProtocol, "an enrolment ended with status {}, known are 0 and 1", status);
  EnrolReplyHeader header{.refused = status == 1, .sizes = {}};
  for (std::size_t i = 0; i < header.sizes.size(); ++i) {
    header.sizes[i] = static_cast<std::uint32_t>(load_number(bytes, 8 + 4 * i, 4));
    if (header.sizes[i] > kEnrolFileBytesMax[i]) {
      return make_error(ErrorCode::kProtocol, "an enrolment announces a file of {} bytes, the limit is {}",
                        header.sizes[i], kEnrolFileBytesMax[i]);
    }
  }
  return header;
}

}  // namespace butterfly
