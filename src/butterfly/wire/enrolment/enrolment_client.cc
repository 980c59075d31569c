#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "butterfly/wire/channel/dial.h"
#include "butterfly/wire/enrolment/enrolment.h"
#include "butterfly/wire/enrolment/secret_files.h"

namespace butterfly {
namespace {

/// The server shows the cluster's authority beside its own certificate. Believed is the one whose fingerprint the token
/// has, and nothing else.
int verify_by_fingerprint(X509_STORE_CTX* store, void* wanted) {
  const auto& pinned = *static_cast<const Fingerprint*>(wanted);
  STACK_OF(X509)* shown = X509_STORE_CTX_get0_untrusted(store);
  for (int i = 0; i < sk_X509_num(shown); ++i) {
    X509* one = sk_X509_value(shown, i);
    if (fingerprint(one) != pinned) continue;
    const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> trusted(
        sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
    if (!trusted || sk_X509_push(trusted.get(), one) == 0) return 0;
    X509_STORE_CTX_set0_trusted_stack(store, trusted.get());
    const int result = X509_verify_cert(store);
    X509_STORE_CTX_set0_trusted_stack(store, nullptr);
    return result;
  }
  X509_STORE_CTX_set_error(store, X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY);
  return 0;
}

Result<NodeFiles> read_answer(ByteStream& stream, const std::string& name, const Patience& patience) {
  EnrolReplyHeaderBytes bytes{};
  if (const Status got = receive_all(stream, bytes, name, patience); !got) {
    return make_error(got.error().code, "{} (it gives no reason to strangers; its own log does)", got.error().message);
  }
  BF_ASSIGN_OR_RETURN(const EnrolReplyHeader header, decode_enrol_reply_header(bytes));
  std::array<std::string, 3> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].resize(header.sizes[i]);
    BF_TRY(receive_all(stream, std::as_writable_bytes(std::span(parts[i])), name, patience));
  }
  if (header.refused) return make_error(ErrorCode::kUnavailable, "{} refused: {}", name, parts[0]);
  return NodeFiles{.certificate = parts[0], .authorities = parts[1], .revocations = parts[2]};
}

struct Asking {
  TokenSecret secret{};
  std::string name{};
  EVP_PKEY* key = nullptr;
  TlsContext context{};
};

Result<NodeFiles> ask(const EnrolOptions& options, const Asking& asking, Deadline deadline) {
  const std::string& name = options.address;
  BF_ASSIGN_OR_RETURN(const auto patience, Patience::create(deadline, options.stop));
  BF_ASSIGN_OR_RETURN(const auto request, make_request(asking.key));
  BF_ASSIGN_OR_RETURN(Descriptor fd, dial(options.address, name, *patience));
  BF_ASSIGN_OR_RETURN(auto stream, make_tls_stream(std::move(fd), asking.context, StreamSide::kClient));
  BF_TRY(complete_handshake(*stream, name, *patience));
  const auto server = stream->peer();
  if (!server || server->role != NodeRole::kCoordinator) {
    return make_error(ErrorCode::kProtocol, "{} is no coordinator: its certificate is that of {} '{}'", name,
                      server ? to_string(server->role) : "nobody,", server ? server->name : "");
  }
  const EnrolHeaderBytes header = encode_enrol_header({.secret = asking.secret,
                                                       .request_bytes = static_cast<std::uint16_t>(request.size()),
                                                       .name_bytes = static_cast<std::uint8_t>(asking.name.size())});
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), as_bytes(asking.name).begin(), as_bytes(asking.name).end());
  bytes.insert(bytes.end(), request.begin(), request.end());
  BF_TRY(send_all(*stream, bytes, name, *patience));
  return read_answer(*stream, name, *patience);
}

/// What came must be of use with the key that it was asked for, before anything is replaced by it.
Result<NodeIdentity> keep(const std::string& folder, const NodeFiles& files, EVP_PKEY* key) {
  BF_ASSIGN_OR_RETURN(const auto chain, read_certificates(files.certificate, "the answer"));
  BF_TRY(read_certificates(files.authorities, "the answer"));
  BF_TRY(read_revocations(files.revocations, "the answer"));
  const auto identity = read_identity(chain.front().get());
  if (!identity || X509_check_private_key(chain.front().get(), key) != 1) {
    return make_error(ErrorCode::kProtocol, "the certificate that came is not for the key it was asked for");
  }
  BF_TRY(write_node_files(folder, files, to_pem(key)));
  return *identity;
}

}  // namespace

Result<NodeIdentity> enrol(const EnrolOptions& options, const JoinToken& token, const std::string& name,
                           Deadline deadline) {
  BF_TRY(check_node_name(name));
  if (token.expires < std::chrono::system_clock::now()) {
    return make_error(ErrorCode::kInvalidArgument, "the token expired at {}, it is {}", format_time(token.expires),
                      format_time(std::chrono::system_clock::now()));
  }
  BF_TRY(make_secret_folder(options.folder));
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(options.folder));
  if (has_credentials(options.folder)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} holds credentials already: `butterfly cluster renew` replaces them, another cluster needs "
                      "another folder",
                      options.folder);
  }
  BF_ASSIGN_OR_RETURN(const KeyPtr key, make_key());
  BF_ASSIGN_OR_RETURN(TlsContext context, make_tls_context(StreamSide::kClient));
  Fingerprint pinned = token.authority;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(context.get(), verify_by_fingerprint, &pinned);
  BF_ASSIGN_OR_RETURN(
      const NodeFiles files,
      ask(options, {.secret = token.secret, .name = name, .key = key.get(), .context = context}, deadline));
  return keep(options.folder, files, key.get());
}

Result<NodeIdentity> renew(const EnrolOptions& options, Deadline deadline) {
  BF_ASSIGN_OR_RETURN(const auto credentials, Credentials::load(options.folder));
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(options.folder));
  BF_ASSIGN_OR_RETURN(const KeyPtr key, make_key());
  BF_ASSIGN_OR_RETURN(const NodeFiles files,
                      ask(options, {.key = key.get(), .context = credentials->context(StreamSide::kClient)}, deadline));
  return keep(options.folder, files, key.get());
}

}  // namespace butterfly
