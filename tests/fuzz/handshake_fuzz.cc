// What a peer may say before the first frame: hello, its reply, the messages of an enrolment with the certificate
// request in them, join tokens, and the PEM files that an enrolment answers with. Whatever arrives is refused or
// becomes values within the limits, and a message that is accepted is the one that would be written.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "butterfly/wire/channel/frame.h"
#include "butterfly/wire/enrolment/certificates.h"
#include "butterfly/wire/enrolment/enrolment.h"
#include "butterfly/wire/enrolment/join_token.h"

namespace {

using namespace butterfly;

void require(bool condition) {
  if (!condition) std::abort();
}

void read_hello(ByteSpan bytes) {
  if (bytes.size() >= kHelloPrefixBytes) static_cast<void>(decode_hello_version(bytes.first<kHelloPrefixBytes>()));
  if (bytes.size() >= kHelloReplyBytes) static_cast<void>(decode_hello_reply(bytes.first<kHelloReplyBytes>()));
  if (bytes.size() < kHelloBytes) return;
  const auto hello = decode_hello(bytes.first<kHelloBytes>());
  if (!hello) return;
  require(hello->label.size() <= kLabelBytesMax);
  const auto again = decode_hello(encode_hello(*hello));
  require(again && again->label == hello->label && again->role == hello->role && again->session == hello->session);
}

void read_enrolment(ByteSpan bytes) {
  if (bytes.size() >= kEnrolReplyHeaderBytes) {
    const auto reply = decode_enrol_reply_header(bytes.first<kEnrolReplyHeaderBytes>());
    if (reply) {
      require(std::ranges::all_of(reply->sizes, [](std::uint32_t size) { return size <= kRevocationsBytesMax; }));
      require(std::ranges::equal(encode_enrol_reply_header(*reply), bytes.first<kEnrolReplyHeaderBytes>()));
    }
  }
  if (bytes.size() < kEnrolHeaderBytes) return;
  const auto header = decode_enrol_header(bytes.first<kEnrolHeaderBytes>());
  if (!header) return;
  require(header->request_bytes >= 1 && header->request_bytes <= kEnrolRequestBytesMax && header->name_bytes <= 63);
  const ByteSpan rest = bytes.subspan(kEnrolHeaderBytes);
  if (rest.size() < header->name_bytes) return;
  static_cast<void>(check_node_name(as_text(rest.first(header->name_bytes))));
  const ByteSpan request = rest.subspan(header->name_bytes);
  static_cast<void>(read_request(request.first(std::min<std::size_t>(request.size(), header->request_bytes))));
}

void read_token(std::string_view text) {
  const auto token = decode_token(text);
  if (token) require(encode_token(*token) == text);
}

/// The checksum guards from slips, not from a peer: let the fuzzer past it.
void read_token_of(ByteSpan bytes) {
  JoinToken token;
  if (bytes.size() < token.secret.size() + token.authority.size()) return;
  std::copy_n(bytes.begin(), token.secret.size(), token.secret.begin());
  std::copy_n(bytes.begin() + token.secret.size(), token.authority.size(), token.authority.begin());
  read_token(encode_token(token));
}

void read_files(const std::string& text) {
  const auto certificates = read_certificates(text, "fuzz");
  if (certificates) {
    for (const X509Ptr& one : *certificates) {
      const auto identity = read_identity(one.get());
      if (identity) require(check_node_name(identity->name).has_value());
      static_cast<void>(expiry_of(one.get()));
    }
  }
  static_cast<void>(read_revocations(text, "fuzz"));
}

template <typename Bytes>
std::vector<std::uint8_t> example_of(std::uint8_t kind, const Bytes& bytes) {
  std::vector<std::uint8_t> example{kind};
  for (const auto byte : bytes) example.push_back(static_cast<std::uint8_t>(byte));
  return example;
}

std::vector<std::vector<std::uint8_t>> valid_examples() {
  const auto now = std::chrono::system_clock::now();
  const Validity validity{.from = now, .until = now + std::chrono::hours(1)};
  const KeyPtr key = make_key().value();
  const auto request = make_request(key.get()).value();
  const X509Ptr authority = make_authority(key.get(), "authority", validity).value();
  CertificateRequest asked;
  asked.key = key.get();
  asked.identity.name = "worker-a";
  asked.validity = validity;
  const X509Ptr certificate = make_certificate(authority.get(), key.get(), asked).value();
  const std::vector<std::string> revoked{"0123456789ABCDEF"};
  const CrlPtr list = make_revocations(authority.get(), key.get(), revoked, validity).value();
  const EnrolHeaderBytes header =
      encode_enrol_header({.request_bytes = static_cast<std::uint16_t>(request.size()), .name_bytes = 8});
  std::vector<std::byte> enrolment(header.begin(), header.end());
  for (const char c : std::string("worker-a")) enrolment.push_back(static_cast<std::byte>(c));
  enrolment.insert(enrolment.end(), request.begin(), request.end());
  return {example_of(0, encode_hello({})),
          example_of(1, enrolment),
          example_of(1, encode_enrol_reply_header({.sizes = {1, 2, 3}})),
          example_of(2, encode_token({})),
          example_of(3, request),
          example_of(4, to_pem(certificate.get()) + to_pem(authority.get())),
          example_of(4, to_pem(list.get()))};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 5) {
    case 0:
      read_hello(bytes);
      break;
    case 1:
      read_enrolment(bytes);
      break;
    case 2:
      read_token(as_text(bytes));
      read_token_of(bytes);
      break;
    case 3:
      static_cast<void>(read_request(bytes));
      break;
    default:
      read_files(std::string(as_text(bytes)));
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max);

/// Now and then begins anew from a valid message: no mutation finds its way through a signed request by itself.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                               unsigned seed) {
  if (seed % 16 == 0) {
    static const std::vector<std::vector<std::uint8_t>> examples = valid_examples();
    const auto& example = examples[seed / 16 % examples.size()];
    if (example.size() <= size_max) {
      std::ranges::copy(example, data);
      size = example.size();
    }
  }
  return LLVMFuzzerMutate(data, size, size_max);
}
