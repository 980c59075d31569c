// What a node proves itself with and believes others by: its key and certificate, the cluster's authorities, and the
// list of revoked certificates, from the files of one folder. When the files change, later connections use the new
// ones. Thread-safe; shared by every connection of a process.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "butterfly/wire/channel/byte_stream.h"
#include "butterfly/wire/enrolment/tls_stream.h"

namespace butterfly {

inline constexpr const char* kNodeKeyFile = "node.key";
inline constexpr const char* kNodeCertificateFile = "node.pem";
inline constexpr const char* kAuthoritiesFile = "ca.pem";
inline constexpr const char* kRevocationsFile = "crl.pem";

/// A list of revocations may be long: nodes whose certificates are renewed as often as they may be, revoked at once.
inline constexpr std::size_t kRevocationsBytesMax = std::size_t{64} << 20;

class Credentials {
 public:
  /// Errors: kNotFound (a file is missing), kInvalidArgument (the key can be read by others), kBadData.
  static Result<std::shared_ptr<const Credentials>> load(const std::string& folder);

  /// For the next connection. Client contexts also accept servers only with a certificate of the cluster.
  TlsContext context(StreamSide side) const;

  /// For a coordinator's enrolment port: also clients without a certificate, and the authorities are shown to them. Up
  /// to date with the files, which are read only where they have changed. Errors: those of load().
  Result<TlsContext> enrolment_context() const;

  /// Who this node is.
  NodeIdentity identity() const;

  /// "node-a, a worker, until 2027-11-21 17:05:09 UTC".
  std::string describe() const;

  struct State;
  explicit Credentials(std::string folder, std::shared_ptr<const State> state);

 private:
  std::shared_ptr<const State> current() const;
  Result<std::shared_ptr<const State>> newest() const;

  const std::string folder_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const State> state_;  // shared: a connection may begin while it is replaced
  mutable std::chrono::steady_clock::time_point looked_{};
};

/// $BUTTERFLY_HOME, else ~/.config/butterfly.
std::string default_credentials_folder();

/// Whether a node's certificate is there.
bool has_credentials(const std::string& folder);

}  // namespace butterfly
