// The cluster's authority: who belongs to it. A folder on the coordinator's machine holds its key, the list of
// certificates it gave out, the hashes of join tokens, and the coordinator's own credentials. Every call reads and
// changes the folder under a lock, so several processes may work on it. Thread-safe for the same reason.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "butterfly/wire/enrolment/join_token.h"

namespace butterfly {

struct AuthorityOptions {
  std::string name = "coordinator";  // of the first node, the coordinator itself
  std::chrono::seconds authority_valid = std::chrono::hours(24 * 3650);
};

struct IssueOptions {
  std::chrono::seconds valid = std::chrono::hours(24 * 365);
};

struct IssuedCertificate {
  std::string serial{};
  NodeIdentity identity{};
  WallTime until{};
  std::optional<WallTime> revoked{};
  WallTime issued{};  // the epoch where the ledger does not say
};

/// What a node gets, in PEM; its key it has made itself.
struct NodeFiles {
  std::string certificate{};
  std::string authorities{};
  std::string revocations{};
};

/// Writes them, and the key where one is given, below `folder`. Errors: kIo.
Status write_node_files(const std::string& folder, const NodeFiles& files, const std::string& key_pem);

/// Certificates that a node may get within a day: each is one more to revoke.
inline constexpr int kCertificatesPerDay = 24;

class Authority {
 public:
  /// A new cluster with a coordinator. Errors: kInvalidArgument (there is one already, a bad name), kIo.
  static Result<Authority> create(const std::string& folder, const AuthorityOptions& options);

  /// Errors: kNotFound when the folder holds none.
  static Result<Authority> open(const std::string& folder);

  /// The secret is in the result alone; the folder keeps its hash. Errors: kIo.
  Result<JoinToken> make_token(std::chrono::seconds valid);

  /// Whether a token would be taken now. Errors: kNotFound (unknown or used), kTimeout (expired).
  Status check_token(const TokenSecret& secret) const;

  /// A worker's first certificate; the token is used up before it is made.
  /// Errors: those of check_token(); kInvalidArgument (name), kProtocol (request), kIo.
  Result<NodeFiles> enrol(const TokenSecret& secret, const std::string& name, ByteSpan request,
                          const IssueOptions& options = {});

  /// Another certificate for a node that has proved who it is. Errors: kInvalidArgument (the ledger says that its
  /// certificate was revoked, or knows none; kCertificatesPerDay), kProtocol (request), kIo.
  Result<NodeFiles> renew(const NodeIdentity& identity, ByteSpan request, const IssueOptions& options = {});

  /// A new key and certificate for the node of this folder. Errors: kIo.
  Status renew_own(const IssueOptions& options = {});

  /// Every certificate of that name, and the list is published, also where the name was revoked before: whatever cut an
  /// earlier attempt short, this one completes it. Errors: kNotFound when no certificate of that name is in use.
  Status revoke(const std::string& name);

  /// Writes the files that follow from the ledger again. Errors: kIo.
  Status republish();

  /// The next of three steps to a new authority; a sentence that says what to do then.
  Result<std::string> rotate();

  /// Newest last. Errors: kBadData, kIo.
  Result<std::vector<IssuedCertificate>> list() const;

  const std::string& folder() const { return folder_; }

 private:
  explicit Authority(std::string folder) : folder_(std::move(folder)) {}

  Result<NodeFiles> issue(const NodeIdentity& identity, EVP_PKEY* key, const IssueOptions& options);
  Result<bool> own_certificate_is_of_current() const;
  Status publish();

  std::string folder_;
};

}  // namespace butterfly
