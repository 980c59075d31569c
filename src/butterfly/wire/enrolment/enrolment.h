// How a node becomes a member: over TLS it shows a join token, or the certificate it has, together with a request for a
// certificate of its own key, which never leaves it. docs/formats/wire.md has the bytes. EnrolmentServer is driven by
// run(), one thread, no other; a client that is silent delays nobody.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/wire/enrolment/authority.h"
#include "butterfly/wire/enrolment/credentials.h"

namespace butterfly {

// --- The messages. What is read here comes from a peer. ---

inline constexpr std::size_t kEnrolHeaderBytes = 32;
inline constexpr std::size_t kEnrolReplyHeaderBytes = 20;
inline constexpr std::size_t kEnrolRequestBytesMax = 2048;
inline constexpr std::array<std::size_t, 3> kEnrolFileBytesMax{std::size_t{1} << 20, std::size_t{1} << 20,
                                                               kRevocationsBytesMax};

/// The first bytes of a client; `secret` comes first of all and is compared before anything else is looked at.
struct EnrolHeader {
  TokenSecret secret{};  // zero when the client shows a certificate instead
  std::uint16_t request_bytes = 0;
  std::uint8_t name_bytes = 0;  // zero when renewing
};

using EnrolHeaderBytes = std::array<std::byte, kEnrolHeaderBytes>;
EnrolHeaderBytes encode_enrol_header(const EnrolHeader& header);
/// Errors: kProtocol.
Result<EnrolHeader> decode_enrol_header(std::span<const std::byte, kEnrolHeaderBytes> bytes);

/// An error and its message, or the sizes of the three files.
struct EnrolReplyHeader {
  bool refused = false;
  std::array<std::uint32_t, 3> sizes{};  // certificate, authorities, revocations; or the message alone
};

using EnrolReplyHeaderBytes = std::array<std::byte, kEnrolReplyHeaderBytes>;
EnrolReplyHeaderBytes encode_enrol_reply_header(const EnrolReplyHeader& header);
/// Errors: kProtocol.
Result<EnrolReplyHeader> decode_enrol_reply_header(std::span<const std::byte, kEnrolReplyHeaderBytes> bytes);

// --- The coordinator's side ---

struct EnrolmentOptions {
  std::string address = "127.0.0.1:0";
  std::string folder{};  // the authority's
  int members = 0;       // ends after this number; 0: never
  std::chrono::milliseconds client_timeout{5000};
  int clients_max = 64;  // unfinished at one time; the oldest gives way
  IssueOptions issue{};
  std::function<void(const std::string& name, const std::string& peer)> on_member{};  // called by run()'s thread
};

class EnrolmentServer {
 public:
  /// Errors: kNotFound (no authority), those of Credentials::load() and listen_on().
  static Result<std::unique_ptr<EnrolmentServer>> create(const EnrolmentOptions& options);
  virtual ~EnrolmentServer() = default;

  virtual std::string address() const = 0;

  /// Until `stop`, or until `members` nodes have what they came for. Errors: kIo.
  virtual Status run(std::stop_token stop) = 0;
};

// --- The node's side ---

struct EnrolOptions {
  std::string address{};
  std::string folder{};
  std::stop_token stop{};
};

/// A new member; the folder is made and must not hold credentials. Errors: kInvalidArgument (name, token expired,
/// credentials there), kUnavailable (refused, went away), kBadData (damaged on the way), kProtocol, kTimeout, kIo.
Result<NodeIdentity> enrol(const EnrolOptions& options, const JoinToken& token, const std::string& name,
                           Deadline deadline);

/// A new key and certificate, and the newest authorities and revocations, for the member of this folder.
Result<NodeIdentity> renew(const EnrolOptions& options, Deadline deadline);

}  // namespace butterfly
