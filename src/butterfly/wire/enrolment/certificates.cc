#include "butterfly/wire/enrolment/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <optional>

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

using NumberPtr = std::unique_ptr<BIGNUM, OpensslFree<BN_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>>;
using IntegerPtr = std::unique_ptr<ASN1_INTEGER, OpensslFree<ASN1_INTEGER_free>>;
using TimePtr = std::unique_ptr<ASN1_TIME, OpensslFree<ASN1_TIME_free>>;

tl::unexpected<Error> failed(const char* what) {
  return make_error(ErrorCode::kIo, "cannot make {}: {}", what, take_openssl_error());
}

bool add_text(X509_NAME* name, const char* field, std::string_view text) {
  return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

bool add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

TimePtr as_asn1(WallTime time) {
  return TimePtr(ASN1_TIME_set(nullptr, std::chrono::system_clock::to_time_t(time)));
}

bool set_random_serial(X509* certificate) {
  std::array<unsigned char, 16> random{};
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) return false;
  random[0] = static_cast<unsigned char>((random[0] & 0x7f) | 0x40);  // positive, and always of one length
  const NumberPtr number(BN_bin2bn(random.data(), static_cast<int>(random.size()), nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_basics(X509* certificate, EVP_PKEY* key, const Validity& validity) {
  const TimePtr from = as_asn1(validity.from);
  const TimePtr until = as_asn1(validity.until);
  return X509_set_version(certificate, X509_VERSION_3) == 1 && set_random_serial(certificate) && from && until &&
         X509_set1_notBefore(certificate, from.get()) == 1 && X509_set1_notAfter(certificate, until.get()) == 1 &&
         X509_set_pubkey(certificate, key) == 1;
}

template <typename Write>
std::string write_pem(Write write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  BF_CHECK(bio && write(bio.get()) == 1, "OpenSSL cannot write to memory");
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(bytes)};
}

BioPtr reading(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string field_of(const X509_NAME* name, int nid) {
  const int index = X509_NAME_get_index_by_NID(name, nid, -1);
  if (index < 0 || X509_NAME_get_index_by_NID(name, nid, index) >= 0) return {};  // none, or several
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, index));
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

}  // namespace

std::string take_openssl_error() {
  const unsigned long code = ERR_peek_last_error();
  const char* text = ERR_reason_error_string(code);
  std::string result = text != nullptr ? text : "unknown failure";
  ERR_clear_error();
  return result;
}

Result<KeyPtr> make_key() {
  KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return failed("a key");
  return key;
}

Result<X509Ptr> make_authority(EVP_PKEY* key, const std::string& name, const Validity& validity) {
  X509Ptr made(X509_new());
  if (!made || !set_basics(made.get(), key, validity)) return failed("the authority's certificate");
  X509_NAME* subject = X509_get_subject_name(made.get());
  if (!add_text(subject, "O", "butterfly cluster") || !add_text(subject, "CN", name) ||
      X509_set_issuer_name(made.get(), subject) != 1 ||
      !add_extension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !add_extension(made.get(), made.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(made.get(), key, EVP_sha256()) == 0) {
    return failed("the authority's certificate");
  }
  return made;
}

Result<X509Ptr> make_certificate(X509* authority, EVP_PKEY* authority_key, const CertificateRequest& request) {
  BF_TRY(check_node_name(request.identity.name));
  X509Ptr made(X509_new());
  if (!made || !set_basics(made.get(), request.key, request.validity)) return failed("a certificate");
  X509_NAME* subject = X509_get_subject_name(made.get());
  if (!add_text(subject, "OU", to_string(request.identity.role)) || !add_text(subject, "CN", request.identity.name) ||
      X509_set_issuer_name(made.get(), X509_get_subject_name(authority)) != 1 ||
      !add_extension(made.get(), authority, NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(made.get(), authority, NID_key_usage, "critical,digitalSignature") ||
      !add_extension(made.get(), authority, NID_ext_key_usage, "clientAuth,serverAuth") ||
      !add_extension(made.get(), authority, NID_subject_key_identifier, "hash") ||
      !add_extension(made.get(), authority, NID_authority_key_identifier, "keyid:always") ||
      X509_sign(made.get(), authority_key, EVP_sha256()) == 0) {
    return failed("a certificate");
  }
  return made;
}

Result<CrlPtr> make_revocations(X509* authority, EVP_PKEY* authority_key, std::span<const std::string> serials,
                                const Validity& validity) {
  CrlPtr made(X509_CRL_new());
  const TimePtr from = as_asn1(validity.from);
  const TimePtr until = as_asn1(validity.until);
  if (!made || !from || !until || X509_CRL_set_version(made.get(), X509_CRL_VERSION_2) != 1 ||
      X509_CRL_set_issuer_name(made.get(), X509_get_subject_name(authority)) != 1 ||
      X509_CRL_set1_lastUpdate(made.get(), from.get()) != 1 || X509_CRL_set1_nextUpdate(made.get(), until.get()) != 1) {
    return failed("a list of revocations");
  }
  for (const std::string& serial : serials) {
    BIGNUM* parsed = nullptr;
    BN_hex2bn(&parsed, serial.c_str());
    const NumberPtr number(parsed);
    const IntegerPtr integer(number ? BN_to_ASN1_INTEGER(number.get(), nullptr) : nullptr);
    std::unique_ptr<X509_REVOKED, OpensslFree<X509_REVOKED_free>> entry(X509_REVOKED_new());
    if (!integer || !entry || X509_REVOKED_set_serialNumber(entry.get(), integer.get()) != 1 ||
        X509_REVOKED_set_revocationDate(entry.get(), from.get()) != 1 ||
        X509_CRL_add0_revoked(made.get(), entry.get()) != 1) {
      return failed("a list of revocations");
    }
    static_cast<void>(entry.release());  // the list's now
  }
  if (X509_CRL_sort(made.get()) != 1 || X509_CRL_sign(made.get(), authority_key, EVP_sha256()) == 0) {
    return failed("a list of revocations");
  }
  return made;
}

Result<std::vector<std::byte>> make_request(EVP_PKEY* key) {
  const RequestPtr request(X509_REQ_new());
  if (!request || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key) != 1 || X509_REQ_sign(request.get(), key, EVP_sha256()) == 0) {
    return failed("a certificate request");
  }
  unsigned char* der = nullptr;
  const int bytes = i2d_X509_REQ(request.get(), &der);
  if (bytes <= 0) return failed("a certificate request");
  const auto* begin = reinterpret_cast<const std::byte*>(der);
  std::vector<std::byte> result(begin, begin + bytes);
  OPENSSL_free(der);
  return result;
}

Result<KeyPtr> read_request(ByteSpan der) {
  const auto* position = reinterpret_cast<const unsigned char*>(der.data());
  const auto* end = position + der.size();
  const RequestPtr request(d2i_X509_REQ(nullptr, &position, static_cast<long>(der.size())));
  if (!request || position != end) {
    ERR_clear_error();
    return make_error(ErrorCode::kProtocol, "{} bytes are no certificate request", der.size());
  }
  KeyPtr key(X509_REQ_get_pubkey(request.get()));
  std::array<char, 32> group{};
  if (!key || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_EC ||
      EVP_PKEY_get_group_name(key.get(), group.data(), group.size(), nullptr) != 1 ||
      std::string_view(group.data()) != "prime256v1") {
    ERR_clear_error();
    return make_error(ErrorCode::kProtocol, "a certificate request for a key that is not of the curve P-256");
  }
  if (X509_REQ_verify(request.get(), key.get()) != 1) {
    ERR_clear_error();
    return make_error(ErrorCode::kProtocol, "a certificate request that its own key has not signed");
  }
  return key;
}

std::string to_pem(EVP_PKEY* private_key) {
  return write_pem(
      [&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, private_key, nullptr, nullptr, 0, nullptr, nullptr); });
}
std::string to_pem(X509* certificate) {
  return write_pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}
std::string to_pem(X509_CRL* revocations) {
  return write_pem([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, revocations); });
}

Result<KeyPtr> read_key(const std::string& pem, const std::string& source) {
  // An encrypted key must not ask a terminal for its password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  KeyPtr key(PEM_read_bio_PrivateKey(reading(pem).get(), nullptr, no_password, nullptr));
  if (!key) return make_error(ErrorCode::kBadData, "{} holds no private key: {}", source, take_openssl_error());
  return key;
}

Result<std::vector<X509Ptr>> read_certificates(const std::string& pem, const std::string& source) {
  std::vector<X509Ptr> result;
  const BioPtr bio = reading(pem);
  while (X509Ptr one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) result.push_back(std::move(one));
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const std::string words = take_openssl_error();
  if (result.empty() || reason != PEM_R_NO_START_LINE) {
    return make_error(ErrorCode::kBadData, "{} holds no certificates in PEM: {}", source, words);
  }
  return result;
}

Result<std::vector<CrlPtr>> read_revocations(const std::string& pem, const std::string& source) {
  std::vector<CrlPtr> result;
  const BioPtr bio = reading(pem);
  while (CrlPtr one{PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr)}) result.push_back(std::move(one));
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const std::string words = take_openssl_error();
  if (result.empty() || reason != PEM_R_NO_START_LINE) {
    return make_error(ErrorCode::kBadData, "{} holds no list of revocations in PEM: {}", source, words);
  }
  return result;
}

Fingerprint fingerprint(X509* certificate) {
  Fingerprint result{};
  unsigned int bytes = 0;
  BF_CHECK(X509_digest(certificate, EVP_sha256(), reinterpret_cast<unsigned char*>(result.data()), &bytes) == 1);
  return result;
}

std::string serial_of(X509* certificate) {
  const NumberPtr number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  BF_CHECK(number != nullptr);
  char* hex = BN_bn2hex(number.get());
  std::string result = hex;
  OPENSSL_free(hex);
  return result;
}

WallTime expiry_of(X509* certificate) {
  std::tm fields{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &fields) != 1) return {};
  return std::chrono::system_clock::from_time_t(::timegm(&fields));
}

std::optional<NodeIdentity> read_identity(X509* certificate) {
  const X509_NAME* subject = X509_get_subject_name(certificate);
  NodeIdentity identity{.name = field_of(subject, NID_commonName), .role = NodeRole::kWorker};
  if (!check_node_name(identity.name)) return std::nullopt;
  const std::string role = field_of(subject, NID_organizationalUnitName);
  if (role == to_string(NodeRole::kCoordinator)) {
    identity.role = NodeRole::kCoordinator;
  } else if (role != to_string(NodeRole::kWorker)) {
    return std::nullopt;
  }
  identity.serial = serial_of(certificate);
  return identity;
}

std::string describe_refused_certificate(long verify_result) {
  switch (verify_result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet (is one of the clocks wrong?)";
    case X509_V_ERR_CERT_REVOKED:
      return "its certificate was revoked";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "its certificate is of another cluster";
    default:
      return fmt::format("its certificate is refused: {}", X509_verify_cert_error_string(verify_result));
  }
}

std::string format_time(WallTime time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm fields{};
  ::gmtime_r(&seconds, &fields);
  std::array<char, 64> text{};
  const std::size_t bytes = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &fields);
  return {text.data(), bytes};
}

}  // namespace butterfly
