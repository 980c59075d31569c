#include "butterfly/wire/enrolment/credentials.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>

#include "butterfly/base/log.h"
#include "butterfly/wire/enrolment/certificates.h"
#include "butterfly/wire/enrolment/secret_files.h"

namespace butterfly {
namespace {

constexpr std::array kFiles{kNodeKeyFile, kNodeCertificateFile, kAuthoritiesFile, kRevocationsFile};

/// When and what the files were: differs after any of them was replaced.
struct Stamp {
  std::array<std::array<std::int64_t, 4>, kFiles.size()> of{};
  bool operator==(const Stamp&) const = default;
};

Stamp stamp_of(const std::string& folder) {
  Stamp stamp;
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    struct stat about {};
    if (::stat((folder + "/" + kFiles[i]).c_str(), &about) != 0) continue;
    stamp.of[i] = {static_cast<std::int64_t>(about.st_ino), about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec};
  }
  return stamp;
}

struct Material {
  KeyPtr key;
  std::vector<X509Ptr> chain;  // the node's certificate first
  std::vector<X509Ptr> authorities;
  std::vector<CrlPtr> revocations;
};

Result<Material> read_material(const std::string& folder) {
  Material material;
  const auto path = [&](const char* file) { return folder + "/" + file; };
  BF_ASSIGN_OR_RETURN(const std::string key, read_file(path(kNodeKeyFile), FileAccess::kOwnerOnly));
  BF_ASSIGN_OR_RETURN(const std::string chain, read_file(path(kNodeCertificateFile), FileAccess::kEveryone));
  BF_ASSIGN_OR_RETURN(const std::string authorities, read_file(path(kAuthoritiesFile), FileAccess::kEveryone));
  BF_ASSIGN_OR_RETURN(const std::string revocations,
                      read_file(path(kRevocationsFile), FileAccess::kEveryone, kRevocationsBytesMax));
  BF_ASSIGN_OR_RETURN(material.key, read_key(key, path(kNodeKeyFile)));
  BF_ASSIGN_OR_RETURN(material.chain, read_certificates(chain, path(kNodeCertificateFile)));
  BF_ASSIGN_OR_RETURN(material.authorities, read_certificates(authorities, path(kAuthoritiesFile)));
  BF_ASSIGN_OR_RETURN(material.revocations, read_revocations(revocations, path(kRevocationsFile)));
  return material;
}

Result<TlsContext> build_context(const Material& material, const std::string& folder, StreamSide side) {
  BF_ASSIGN_OR_RETURN(TlsContext context, make_tls_context(side));
  SSL_CTX* raw = context.get();
  if (SSL_CTX_use_certificate(raw, material.chain.front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(raw, material.key.get()) != 1 || SSL_CTX_check_private_key(raw) != 1) {
    return make_error(ErrorCode::kBadData, "{0}/{1} and {0}/{2} do not belong together: {3}", folder, kNodeKeyFile,
                      kNodeCertificateFile, take_openssl_error());
  }
  X509_STORE* store = SSL_CTX_get_cert_store(raw);
  for (const X509Ptr& authority : material.authorities) X509_STORE_add_cert(store, authority.get());
  for (const CrlPtr& list : material.revocations) X509_STORE_add_crl(store, list.get());
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_X509_STRICT);
  // Both sides prove who they are; a client without a certificate is not let in. The chain is one certificate deep.
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(raw, 1);
  ERR_clear_error();
  return context;
}

/// Also for clients without a certificate, who are shown the authorities.
Result<TlsContext> build_enrolment_context(const Material& material, const std::string& folder) {
  BF_ASSIGN_OR_RETURN(TlsContext context, build_context(material, folder, StreamSide::kServer));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  for (const X509Ptr& authority : material.authorities) SSL_CTX_add1_chain_cert(context.get(), authority.get());
  return context;
}

}  // namespace

struct Credentials::State {
  Stamp stamp;
  TlsContext client, server, enrolment;
  NodeIdentity identity;
  WallTime until;
};

namespace {

Result<std::shared_ptr<const Credentials::State>> read_state(const std::string& folder) {
  auto state = std::make_shared<Credentials::State>();
  state->stamp = stamp_of(folder);
  BF_ASSIGN_OR_RETURN(const Material material, read_material(folder));
  BF_ASSIGN_OR_RETURN(state->client, build_context(material, folder, StreamSide::kClient));
  BF_ASSIGN_OR_RETURN(state->server, build_context(material, folder, StreamSide::kServer));
  BF_ASSIGN_OR_RETURN(state->enrolment, build_enrolment_context(material, folder));
  const auto identity = read_identity(material.chain.front().get());
  if (!identity) {
    return make_error(ErrorCode::kBadData, "{}/{} is no certificate of a node", folder, kNodeCertificateFile);
  }
  state->identity = *identity;
  state->until = expiry_of(material.chain.front().get());
  return state;
}

}  // namespace

Credentials::Credentials(std::string folder, std::shared_ptr<const State> state)
    : folder_(std::move(folder)), state_(std::move(state)) {}

Result<std::shared_ptr<const Credentials>> Credentials::load(const std::string& folder) {
  BF_ASSIGN_OR_RETURN(auto state, read_state(folder));
  if (state->until < std::chrono::system_clock::now()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the certificate in {} expired at {}: `butterfly cluster renew` gets a new one in time, "
                      "`butterfly cluster enroll` one after",
                      folder, format_time(state->until));
  }
  return std::make_shared<const Credentials>(folder, std::move(state));
}

std::shared_ptr<const Credentials::State> Credentials::current() const {
  constexpr auto kLookAgain = std::chrono::milliseconds(500);
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookAgain) return state_;
  looked_ = now;
  if (stamp_of(folder_) == state_->stamp) return state_;
  auto fresh = read_state(folder_);
  if (fresh) {
    state_ = std::move(*fresh);
  } else {
    // Perhaps half of the files are written: what was good before stays, until they make sense again.
    log().warn("credentials changed and cannot be used, the former ones stay: {}", fresh.error().message);
  }
  return state_;
}

Result<TlsContext> Credentials::enrolment_context() const {
  BF_ASSIGN_OR_RETURN(const auto state, newest());
  return state->enrolment;
}

Result<std::shared_ptr<const Credentials::State>> Credentials::newest() const {
  std::lock_guard lock(mutex_);
  if (stamp_of(folder_) != state_->stamp) {
    BF_ASSIGN_OR_RETURN(state_, read_state(folder_));
  }
  return state_;
}

TlsContext Credentials::context(StreamSide side) const {
  const auto state = current();
  return side == StreamSide::kServer ? state->server : state->client;
}

NodeIdentity Credentials::identity() const {
  return current()->identity;
}

std::string Credentials::describe() const {
  const auto state = current();
  return fmt::format("{}, a {}, until {}", state->identity.name, to_string(state->identity.role),
                     format_time(state->until));
}

std::string default_credentials_folder() {
  if (const char* home = std::getenv("BUTTERFLY_HOME"); home != nullptr && *home != '\0') return home;
  const char* home = std::getenv("HOME");
  return fmt::format("{}/.config/butterfly", home != nullptr ? home : ".");
}

bool has_credentials(const std::string& folder) {
  struct stat about {};
  return ::stat((folder + "/" + kNodeCertificateFile).c_str(), &about) == 0;
}

}  // namespace butterfly
