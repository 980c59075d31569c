#include "butterfly/wire/enrolment/authority.h"

#include <openssl/crypto.h>
#include <openssl/x509.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "butterfly/base/check.h"
#include "butterfly/wire/enrolment/credentials.h"
#include "butterfly/wire/enrolment/secret_files.h"

namespace butterfly {
namespace {

// An authority is two files, ".key" and ".pem". Beside the one that signs there may be one that will, or one that did.
constexpr const char* kCurrent = "authority";
constexpr const char* kNext = "next-authority";
constexpr const char* kFormer = "former-authority";
constexpr const char* kLedger = "nodes";   // SERIAL ROLE UNTIL REVOKED NAME ISSUED, one certificate a line
constexpr const char* kTokens = "tokens";  // SHA256 UNTIL, one token a line

constexpr auto kClockTolerance = std::chrono::hours(1);  // nodes' clocks may differ by that
constexpr auto kDay = std::chrono::hours(24);
/// A certificate, after it has expired. For as long as an authority lives: a clock that ran ahead for a while must not
/// make us forget who was given a certificate, and whose was revoked.
constexpr auto kRemembered = 3653 * kDay;

constexpr std::size_t kUnlimited = ~std::size_t{0};  // of a file that must be read: nothing could be revoked without it

bool exists(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0;
}

std::int64_t seconds(WallTime time) {
  return std::chrono::system_clock::to_time_t(time);
}
WallTime from_seconds(std::int64_t value) {
  return std::chrono::system_clock::from_time_t(value);
}

struct Signer {
  KeyPtr key;
  X509Ptr certificate;
};

Result<Signer> read_signer(const std::string& folder, const char* which) {
  const std::string stem = folder + "/" + which;
  BF_ASSIGN_OR_RETURN(const std::string key, read_file(stem + ".key", FileAccess::kOwnerOnly));
  BF_ASSIGN_OR_RETURN(const std::string certificate, read_file(stem + ".pem", FileAccess::kEveryone));
  Signer signer;
  BF_ASSIGN_OR_RETURN(signer.key, read_key(key, stem + ".key"));
  BF_ASSIGN_OR_RETURN(auto certificates, read_certificates(certificate, stem + ".pem"));
  signer.certificate = std::move(certificates.front());
  return signer;
}

/// Files of a new authority; the key first, so that a certificate without its key is never there.
Status make_signer(const std::string& folder, const char* which, std::chrono::seconds valid) {
  BF_ASSIGN_OR_RETURN(const KeyPtr key, make_key());
  const auto now = std::chrono::system_clock::now();
  std::array<std::byte, 4> number{};
  BF_CHECK(getrandom(number.data(), number.size(), 0) == 4);
  BF_ASSIGN_OR_RETURN(const X509Ptr certificate, make_authority(key.get(), "authority " + to_hex(number),
                                                                {.from = now - kClockTolerance, .until = now + valid}));
  const std::string stem = folder + "/" + which;
  BF_TRY(write_file(stem + ".key", to_pem(key.get()), FileAccess::kOwnerOnly));
  return write_file(stem + ".pem", to_pem(certificate.get()), FileAccess::kEveryone);
}

/// The current signer becomes the former one and the next one current. A process may have died between two of the
/// renames: what it did not do is done. The lock is held.
Status promote_next(const std::string& folder) {
  const auto name = [&](const char* which, const char* kind) { return folder + "/" + which + kind; };
  const auto move = [&](const char* from, const char* to, const char* kind) -> Status {
    const std::string source = name(from, kind), target = name(to, kind);
    if (std::rename(source.c_str(), target.c_str()) == 0) return {};
    return make_error(ErrorCode::kIo, "cannot rename {} to {}: {}", source, target, system_message(errno));
  };
  // The next one's files move last: while its certificate is there, whatever else is missing was moved already.
  if (exists(name(kNext, ".key"))) {
    for (const char* kind : {".key", ".pem"}) {
      if (exists(name(kCurrent, kind))) BF_TRY(move(kCurrent, kFormer, kind));
    }
    BF_TRY(move(kNext, kCurrent, ".key"));
  }
  return move(kNext, kCurrent, ".pem");
}

bool promotion_was_interrupted(const std::string& folder) {
  const auto there = [&](const char* which, const char* kind) { return exists(folder + "/" + which + kind); };
  return there(kNext, ".pem") && !(there(kCurrent, ".key") && there(kCurrent, ".pem"));
}

Result<std::string> read_optional(const std::string& path) {
  if (!exists(path)) return std::string();
  return read_file(path, FileAccess::kOwnerOnly, kUnlimited);
}

Result<std::vector<IssuedCertificate>> read_ledger(const std::string& folder) {
  const std::string path = folder + "/" + kLedger;
  BF_ASSIGN_OR_RETURN(const std::string text, read_optional(path));
  std::vector<IssuedCertificate> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    IssuedCertificate one;
    std::string role;
    std::int64_t until = 0, revoked = 0, issued = 0;
    if (!(fields >> one.serial >> role >> until >> revoked >> one.identity.name) ||
        (role != "coordinator" && role != "worker")) {
      return make_error(ErrorCode::kBadData, "{}: line {} is not one of its lines", path, all.size() + 1);
    }
    one.identity.role = role == "worker" ? NodeRole::kWorker : NodeRole::kCoordinator;
    one.until = from_seconds(until);
    if (revoked != 0) one.revoked = from_seconds(revoked);
    if (fields >> issued) one.issued = from_seconds(issued);  // earlier versions did not write it
    all.push_back(std::move(one));
  }
  return all;
}

/// Forgets what expired long ago.
Status write_ledger(const std::string& folder, const std::vector<IssuedCertificate>& all) {
  const auto now = std::chrono::system_clock::now();
  std::string text;
  for (const IssuedCertificate& one : all) {
    if (one.until + kRemembered < now) continue;
    text += fmt::format("{} {} {} {} {} {}\n", one.serial, to_string(one.identity.role), seconds(one.until),
                        one.revoked ? seconds(*one.revoked) : 0, one.identity.name, seconds(one.issued));
  }
  return write_file(folder + "/" + kLedger, text, FileAccess::kOwnerOnly);
}

struct NotedToken {
  std::string hash;
  WallTime until;
};

Result<std::vector<NotedToken>> read_tokens(const std::string& folder) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_optional(folder + "/" + kTokens));
  std::vector<NotedToken> all;
  std::istringstream lines(text);
  std::int64_t until = 0;
  for (std::string hash; lines >> hash >> until;) all.push_back({hash, from_seconds(until)});
  return all;
}

Status write_tokens(const std::string& folder, const std::vector<NotedToken>& all) {
  std::string text;
  for (const NotedToken& one : all) text += fmt::format("{} {}\n", one.hash, seconds(one.until));
  return write_file(folder + "/" + kTokens, text, FileAccess::kOwnerOnly);
}

/// The place of a token that may be used now. Errors: kNotFound, kTimeout.
Result<std::size_t> find_token(const std::vector<NotedToken>& tokens, const TokenSecret& secret) {
  const std::string hash = to_hex(sha256(secret));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].hash.size() != hash.size() || CRYPTO_memcmp(tokens[i].hash.data(), hash.data(), hash.size()) != 0) {
      continue;
    }
    if (tokens[i].until <= std::chrono::system_clock::now()) {
      return make_error(ErrorCode::kTimeout, "its token expired at {}", format_time(tokens[i].until));
    }
    return i;
  }
  return make_error(ErrorCode::kNotFound, "its token is unknown here, or was used before");
}

bool is_valid(const IssuedCertificate& one) {
  return !one.revoked && one.until > std::chrono::system_clock::now();
}

/// The list of revocations may be older than the ledger, so it is the ledger that counts.
Status check_renewal(const std::vector<IssuedCertificate>& ledger, const NodeIdentity& identity) {
  const auto now = std::chrono::system_clock::now();
  const auto shown = [&](const IssuedCertificate& one) {
    return identity.serial.empty() ? one.identity.name == identity.name && is_valid(one)
                                   : one.serial == identity.serial;
  };
  const auto found = std::ranges::find_if(ledger, shown);
  if (found == ledger.end()) {
    return make_error(ErrorCode::kInvalidArgument, "no certificate {} of '{}' is among the {} that were given out",
                      identity.serial, identity.name, ledger.size());
  }
  if (found->revoked) {
    return make_error(ErrorCode::kInvalidArgument, "the certificate of '{}' was revoked at {}", identity.name,
                      format_time(*found->revoked));
  }
  const auto today = std::ranges::count_if(ledger, [&](const IssuedCertificate& one) {
    return one.identity.name == identity.name && one.issued > now - kDay && one.issued < now + kDay;
  });
  if (today >= kCertificatesPerDay) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' was given {} certificates within a day, the limit is {}",
                      identity.name, today, kCertificatesPerDay);
  }
  return {};
}

}  // namespace

Status write_node_files(const std::string& folder, const NodeFiles& files, const std::string& key_pem) {
  BF_TRY(write_file(folder + "/" + kAuthoritiesFile, files.authorities, FileAccess::kEveryone));
  BF_TRY(write_file(folder + "/" + kRevocationsFile, files.revocations, FileAccess::kEveryone));
  if (!key_pem.empty()) BF_TRY(write_file(folder + "/" + kNodeKeyFile, key_pem, FileAccess::kOwnerOnly));
  return write_file(folder + "/" + kNodeCertificateFile, files.certificate, FileAccess::kEveryone);
}

Result<Authority> Authority::create(const std::string& folder, const AuthorityOptions& options) {
  BF_TRY(check_node_name(options.name));
  BF_TRY(make_secret_folder(folder));
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder));
  for (const std::string& taken : {fmt::format("{}.key", kCurrent), std::string(kNodeCertificateFile)}) {
    if (exists(folder + "/" + taken)) {
      return make_error(ErrorCode::kInvalidArgument, "{} holds credentials already ({}): nothing was changed", folder,
                        taken);
    }
  }
  BF_TRY(make_signer(folder, kCurrent, options.authority_valid));
  Authority made(folder);
  BF_ASSIGN_OR_RETURN(const KeyPtr key, make_key());
  BF_ASSIGN_OR_RETURN(const NodeFiles files,
                      made.issue({.name = options.name, .role = NodeRole::kCoordinator}, key.get(), {}));
  BF_TRY(write_node_files(folder, files, to_pem(key.get())));
  return made;
}

Result<Authority> Authority::open(const std::string& folder) {
  if (promotion_was_interrupted(folder)) {
    BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder));
    if (promotion_was_interrupted(folder)) BF_TRY(promote_next(folder));
  }
  if (!exists(fmt::format("{}/{}.key", folder, kCurrent))) {
    return make_error(ErrorCode::kNotFound,
                      "{} holds no cluster's authority: this runs where `butterfly cluster init` was run", folder);
  }
  return Authority(folder);
}

/// Everybody's files: the authorities that are believed, and what each of them has revoked. The lock is held.
Status Authority::publish() {
  BF_ASSIGN_OR_RETURN(const auto ledger, read_ledger(folder_));
  const auto now = std::chrono::system_clock::now();
  std::vector<std::string> revoked;
  for (const IssuedCertificate& one : ledger) {
    if (one.revoked && one.until + kDay > now) revoked.push_back(one.serial);
  }
  std::string authorities, lists;
  for (const char* which : {kCurrent, kNext, kFormer}) {
    if (!exists(fmt::format("{}/{}.pem", folder_, which))) continue;
    BF_ASSIGN_OR_RETURN(const Signer signer, read_signer(folder_, which));
    const Validity validity{.from = now - kClockTolerance, .until = expiry_of(signer.certificate.get())};
    BF_ASSIGN_OR_RETURN(const CrlPtr list,
                        make_revocations(signer.certificate.get(), signer.key.get(), revoked, validity));
    authorities += to_pem(signer.certificate.get());
    lists += to_pem(list.get());
  }
  BF_TRY(write_file(folder_ + "/" + kRevocationsFile, lists, FileAccess::kEveryone));
  return write_file(folder_ + "/" + kAuthoritiesFile, authorities, FileAccess::kEveryone);
}

/// Notes the certificate before it is given to anybody, so that it can be revoked. The lock is held.
Result<NodeFiles> Authority::issue(const NodeIdentity& identity, EVP_PKEY* key, const IssueOptions& options) {
  BF_ASSIGN_OR_RETURN(const Signer signer, read_signer(folder_, kCurrent));
  const auto now = std::chrono::system_clock::now();
  const auto until = std::min(now + options.valid, expiry_of(signer.certificate.get()));
  BF_ASSIGN_OR_RETURN(const X509Ptr made,
                      make_certificate(signer.certificate.get(), signer.key.get(),
                                       {.key = key,
                                        .identity = identity,
                                        .validity = {.from = std::min(now, until) - kClockTolerance, .until = until}}));
  BF_ASSIGN_OR_RETURN(auto ledger, read_ledger(folder_));
  ledger.push_back(
      {.serial = serial_of(made.get()), .identity = identity, .until = until, .revoked = {}, .issued = now});
  BF_TRY(write_ledger(folder_, ledger));
  BF_TRY(publish());
  NodeFiles files{.certificate = to_pem(made.get()), .authorities = {}, .revocations = {}};
  BF_ASSIGN_OR_RETURN(files.authorities, read_file(folder_ + "/" + kAuthoritiesFile, FileAccess::kEveryone));
  BF_ASSIGN_OR_RETURN(files.revocations,
                      read_file(folder_ + "/" + kRevocationsFile, FileAccess::kEveryone, kRevocationsBytesMax));
  return files;
}

Result<JoinToken> Authority::make_token(std::chrono::seconds valid) {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  BF_ASSIGN_OR_RETURN(const Signer signer, read_signer(folder_, kCurrent));
  const auto now = std::chrono::system_clock::now();
  JoinToken token{.secret = {}, .authority = fingerprint(signer.certificate.get()), .expires = now + valid};
  const auto got = getrandom(token.secret.data(), token.secret.size(), 0);
  BF_CHECK(got == static_cast<ssize_t>(token.secret.size()), "the operating system gives no random bytes");
  BF_ASSIGN_OR_RETURN(auto tokens, read_tokens(folder_));
  std::erase_if(tokens, [&](const NotedToken& one) { return one.until + std::chrono::hours(24) < now; });
  tokens.push_back({.hash = to_hex(sha256(token.secret)), .until = token.expires});
  BF_TRY(write_tokens(folder_, tokens));
  return token;
}

Status Authority::check_token(const TokenSecret& secret) const {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  BF_ASSIGN_OR_RETURN(const auto tokens, read_tokens(folder_));
  BF_TRY(find_token(tokens, secret));
  return {};
}

Result<NodeFiles> Authority::enrol(const TokenSecret& secret, const std::string& name, ByteSpan request,
                                   const IssueOptions& options) {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  BF_ASSIGN_OR_RETURN(auto tokens, read_tokens(folder_));
  BF_ASSIGN_OR_RETURN(const std::size_t place, find_token(tokens, secret));
  BF_TRY(check_node_name(name));
  BF_ASSIGN_OR_RETURN(const auto ledger, read_ledger(folder_));
  for (const IssuedCertificate& one : ledger) {
    if (one.identity.name == name && is_valid(one)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a node called '{}' is a member already: choose another name, or revoke that one first", name);
    }
  }
  BF_ASSIGN_OR_RETURN(const KeyPtr key, read_request(request));
  tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(place));
  BF_TRY(write_tokens(folder_, tokens));  // before anything is given for it
  return issue({.name = name, .role = NodeRole::kWorker}, key.get(), options);
}

Result<NodeFiles> Authority::renew(const NodeIdentity& identity, ByteSpan request, const IssueOptions& options) {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  BF_ASSIGN_OR_RETURN(const auto ledger, read_ledger(folder_));
  BF_TRY(check_renewal(ledger, identity));
  BF_ASSIGN_OR_RETURN(const KeyPtr key, read_request(request));
  return issue(identity, key.get(), options);
}

Status Authority::renew_own(const IssueOptions& options) {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  const std::string path = folder_ + "/" + kNodeCertificateFile;
  BF_ASSIGN_OR_RETURN(const std::string pem, read_file(path, FileAccess::kEveryone));
  BF_ASSIGN_OR_RETURN(const auto chain, read_certificates(pem, path));
  const auto identity = read_identity(chain.front().get());
  if (!identity) return make_error(ErrorCode::kBadData, "{} is no certificate of a node", path);
  BF_ASSIGN_OR_RETURN(const KeyPtr key, make_key());
  BF_ASSIGN_OR_RETURN(const NodeFiles files, issue(*identity, key.get(), options));
  return write_node_files(folder_, files, to_pem(key.get()));
}

Status Authority::revoke(const std::string& name) {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  BF_ASSIGN_OR_RETURN(auto ledger, read_ledger(folder_));
  const auto now = std::chrono::system_clock::now();
  int found = 0;
  for (IssuedCertificate& one : ledger) {
    if (one.identity.name != name || one.until <= now) continue;
    if (!one.revoked) one.revoked = now;
    ++found;
  }
  BF_TRY(write_ledger(folder_, ledger));
  if (const Status published = publish(); !published) {
    return make_error(published.error().code, "the revocation is noted, its list is not published: {}",
                      published.error().message);
  }
  if (found == 0) return make_error(ErrorCode::kNotFound, "no node called '{}' has a valid certificate", name);
  return {};
}

Status Authority::republish() {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  return publish();
}

Result<bool> Authority::own_certificate_is_of_current() const {
  BF_ASSIGN_OR_RETURN(const Signer current, read_signer(folder_, kCurrent));
  const std::string path = folder_ + "/" + kNodeCertificateFile;
  BF_ASSIGN_OR_RETURN(const std::string pem, read_file(path, FileAccess::kEveryone));
  BF_ASSIGN_OR_RETURN(const auto chain, read_certificates(pem, path));
  return X509_verify(chain.front().get(), X509_get0_pubkey(current.certificate.get())) == 1;
}

/// A step that was cut short is completed before the next one begins.
Result<std::string> Authority::rotate() {
  constexpr const char* kStep1 =
      "step 1 of 3: a new authority is believed beside the old one; run `butterfly cluster renew` on every node, then "
      "`butterfly cluster rotate` again";
  constexpr const char* kStep2 =
      "step 2 of 3: the new authority signs, this node has its certificate from it; run `butterfly cluster renew` on "
      "every node, then `butterfly cluster rotate` again";
  constexpr const char* kStep3 =
      "step 3 of 3: the former authority is forgotten here; every node forgets it with its next `butterfly cluster "
      "renew`";
  const auto there = [&](const char* which) { return exists(fmt::format("{}/{}.pem", folder_, which)); };
  if (there(kFormer)) {
    BF_ASSIGN_OR_RETURN(const bool second_is_done, own_certificate_is_of_current());
    if (!second_is_done) {
      BF_TRY(renew_own());
      return kStep2;
    }
    BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
    for (const char* kind : {".pem", ".key"}) std::remove(fmt::format("{}/{}{}", folder_, kFormer, kind).c_str());
    BF_TRY(publish());
    return kStep3;
  }
  if (there(kNext)) {
    {
      BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
      BF_ASSIGN_OR_RETURN(const Signer next, read_signer(folder_, kNext));
      BF_ASSIGN_OR_RETURN(const std::string believed,
                          read_file(folder_ + "/" + kAuthoritiesFile, FileAccess::kEveryone));
      if (believed.find(to_pem(next.certificate.get())) == std::string::npos) {
        BF_TRY(publish());
        return kStep1;
      }
      BF_TRY(promote_next(folder_));
    }
    BF_TRY(renew_own());
    return kStep2;
  }
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  BF_TRY(make_signer(folder_, kNext, AuthorityOptions{}.authority_valid));
  BF_TRY(publish());
  return kStep1;
}

Result<std::vector<IssuedCertificate>> Authority::list() const {
  BF_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(folder_));
  return read_ledger(folder_);
}

}  // namespace butterfly
