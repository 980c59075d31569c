// Making and reading the cluster's certificates: ECDSA over P-256, X.509, PEM. What a certificate says of a node is its
// subject: CN is the name, OU the role. Plain functions; the objects are OpenSSL's, owned by their pointers.
#pragma once

#include <array>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/hash/digest.h"
#include "butterfly/wire/channel/identity.h"
#include "butterfly/wire/enrolment/openssl.h"

namespace butterfly {

using WallTime = std::chrono::system_clock::time_point;
using Fingerprint = Sha256;

/// Errors of all that make something: kIo, with OpenSSL's words.
Result<KeyPtr> make_key();

struct Validity {
  WallTime from{};
  WallTime until{};
};

/// A self-signed authority.
Result<X509Ptr> make_authority(EVP_PKEY* key, const std::string& name, const Validity& validity);

struct CertificateRequest {
  EVP_PKEY* key = nullptr;  // the node's, of which only the public half is used
  NodeIdentity identity{};
  Validity validity{};
};

Result<X509Ptr> make_certificate(X509* authority, EVP_PKEY* authority_key, const CertificateRequest& request);

/// A signed list of revoked serial numbers, in hexadecimal.
Result<CrlPtr> make_revocations(X509* authority, EVP_PKEY* authority_key, std::span<const std::string> serials,
                                const Validity& validity);

/// DER of a request signed by `key`: proof that the node that asks holds the private half.
Result<std::vector<std::byte>> make_request(EVP_PKEY* key);

/// The public key of a request. Errors: kProtocol when it is not a request, is not signed by its own key, or is not
/// P-256.
Result<KeyPtr> read_request(ByteSpan der);

std::string to_pem(EVP_PKEY* private_key);
std::string to_pem(X509* certificate);
std::string to_pem(X509_CRL* revocations);

/// Errors: kBadData naming `source`.
Result<KeyPtr> read_key(const std::string& pem, const std::string& source);
Result<std::vector<X509Ptr>> read_certificates(const std::string& pem, const std::string& source);
Result<std::vector<CrlPtr>> read_revocations(const std::string& pem, const std::string& source);

Fingerprint fingerprint(X509* certificate);
std::string serial_of(X509* certificate);
WallTime expiry_of(X509* certificate);

/// Nothing when the subject is not one that our authority writes.
std::optional<NodeIdentity> read_identity(X509* certificate);

/// Half a sentence for an X509_V_ERR_ code.
std::string describe_refused_certificate(long verify_result);

/// "2026-11-21 17:05:09 UTC".
std::string format_time(WallTime time);

}  // namespace butterfly
