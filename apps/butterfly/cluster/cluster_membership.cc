// butterfly cluster enroll, renew: a node's side of membership.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>

#include "butterfly/wire/enrolment/credentials.h"
#include "butterfly/wire/enrolment/enrolment.h"
#include "cluster/cluster.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kAnswerTimeoutMs = 15'000;

/// The host's own name, as far as a node can have it.
std::string host_name() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return "worker";
  std::string name;
  for (const char c : std::string(host.data()).substr(0, 63)) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    name += check_node_name(std::string(1, lower)) ? lower : '-';
  }
  return name.empty() ? "worker" : name;
}

struct EnrollCommand {
  std::string folder, address, token, name;
};

Result<int> run_enroll(const EnrollCommand& command) {
  std::string text = command.token;
  if (text == "-") std::getline(std::cin, text);
  BF_ASSIGN_OR_RETURN(const JoinToken token, decode_token(text));
  const EnrolOptions options{
      .address = command.address, .folder = chosen_folder(command.folder), .stop = interrupted()};
  const std::string name = command.name.empty() ? host_name() : command.name;
  BF_TRY(enrol(options, token, name, after_ms(kAnswerTimeoutMs)));
  BF_ASSIGN_OR_RETURN(const auto credentials, Credentials::load(options.folder));
  std::printf("this node is %s; its credentials are in %s\n", credentials->describe().c_str(), options.folder.c_str());
  return kExitOk;
}

struct RenewCommand {
  std::string folder, address;
};

Result<int> run_renew(const RenewCommand& command) {
  const EnrolOptions options{
      .address = command.address, .folder = chosen_folder(command.folder), .stop = interrupted()};
  if (command.address.empty()) {
    // The coordinator asks nobody: its authority lies beside it.
    BF_ASSIGN_OR_RETURN(Authority authority, Authority::open(options.folder));
    BF_TRY(authority.renew_own());
  } else {
    BF_TRY(renew(options, after_ms(kAnswerTimeoutMs)));
  }
  BF_ASSIGN_OR_RETURN(const auto credentials, Credentials::load(options.folder));
  std::printf("this node is %s\n", credentials->describe().c_str());
  return kExitOk;
}

}  // namespace

void add_folder_option(Command command, std::string& folder) {
  command.add_option("--credentials", folder, "Folder [$BUTTERFLY_HOME, else ~/.config/butterfly]");
}

std::string chosen_folder(const std::string& folder) {
  return folder.empty() ? default_credentials_folder() : folder;
}

void add_cluster_membership(Command cluster, Action& action) {
  auto enroll = cluster.add_subcommand("enroll", "Make this machine a member: makes a key, gets a certificate for it");
  const auto enrolling = std::make_shared<EnrollCommand>();
  enroll.add_option("HOST:PORT", enrolling->address, "Where `butterfly cluster admit` listens").required();
  enroll
      .add_option("TOKEN", enrolling->token,
                  "From `butterfly cluster token`; - reads it from stdin, out of sight of `ps`")
      .required();
  enroll.add_option("--name", enrolling->name, "This node's name [the host's]");
  add_folder_option(enroll, enrolling->folder);
  run_later(enroll, action, [enrolling] { return run_enroll(*enrolling); });

  auto renew = cluster.add_subcommand("renew", "A new key and certificate, and the newest list of revocations");
  const auto renewing = std::make_shared<RenewCommand>();
  renew.add_option("HOST:PORT", renewing->address,
                   "Where `butterfly cluster admit` listens; the coordinator itself needs none");
  add_folder_option(renew, renewing->folder);
  run_later(renew, action, [renewing] { return run_renew(*renewing); });
}

}  // namespace butterfly::app
