// butterfly cluster init, token, admit, list, revoke, rotate: the coordinator's side of membership.
#include <charconv>
#include <cstdio>

#include "butterfly/base/json.h"
#include "butterfly/wire/enrolment/credentials.h"
#include "butterfly/wire/enrolment/enrolment.h"
#include "cluster/cluster.h"

namespace butterfly::app {
namespace {

/// "90s", "15m", "1h", "7d". Errors: kInvalidArgument.
Result<std::chrono::seconds> parse_duration(const std::string& text) {
  std::int64_t count = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::int64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86'400 : 0;
  constexpr std::int64_t kLongest = 366 * 86'400;
  if (code != std::errc() || seconds == 0 || count < 1 || count > kLongest / seconds) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' is no duration such as 90s, 15m, 1h or 7d, at most a year",
                      text);
  }
  return std::chrono::seconds(count * seconds);
}

struct InitCommand {
  std::string folder, name = "coordinator";
};

Result<int> init(const InitCommand& command) {
  const std::string folder = chosen_folder(command.folder);
  BF_ASSIGN_OR_RETURN(const Authority authority, Authority::create(folder, {.name = command.name}));
  BF_ASSIGN_OR_RETURN(const auto credentials, Credentials::load(folder));
  std::printf("made a cluster in %s; this node is %s\n", authority.folder().c_str(), credentials->describe().c_str());
  return kExitOk;
}

struct TokenCommand {
  std::string folder, expires = "1h";
};

Result<int> token(const TokenCommand& command) {
  BF_ASSIGN_OR_RETURN(const auto valid, parse_duration(command.expires));
  BF_ASSIGN_OR_RETURN(Authority authority, Authority::open(chosen_folder(command.folder)));
  BF_ASSIGN_OR_RETURN(const JoinToken made, authority.make_token(valid));
  std::fprintf(stderr, "admits one node, until %s\n", format_time(made.expires).c_str());
  std::printf("%s\n", encode_token(made).c_str());
  return kExitOk;
}

struct AdmitCommand {
  std::string folder, listen = "127.0.0.1:0";
  int members = 0;
};

Result<int> admit(const AdmitCommand& command) {
  EnrolmentOptions options;
  options.address = command.listen;
  options.folder = chosen_folder(command.folder);
  options.members = command.members;
  options.on_member = [](const std::string& name, const std::string& peer) {
    std::printf("%s has a certificate; it asked from %s\n", name.c_str(), peer.c_str());
    std::fflush(stdout);
  };
  BF_ASSIGN_OR_RETURN(const auto server, EnrolmentServer::create(options));
  std::fprintf(stderr, "admitting on %s\n", server->address().c_str());
  BF_TRY(server->run(interrupted()));
  return kExitOk;
}

struct ListCommand {
  std::string folder;
  bool json = false;
};

const char* state_of(const IssuedCertificate& one) {
  if (one.revoked) return "revoked";
  return one.until > std::chrono::system_clock::now() ? "valid" : "expired";
}

Result<int> list(const ListCommand& command) {
  BF_ASSIGN_OR_RETURN(const Authority authority, Authority::open(chosen_folder(command.folder)));
  BF_ASSIGN_OR_RETURN(const auto all, authority.list());
  if (command.json) {
    auto j = nlohmann::ordered_json::array();
    for (const IssuedCertificate& one : all) {
      j.push_back({{"name", one.identity.name},
                   {"role", to_string(one.identity.role)},
                   {"state", state_of(one)},
                   {"until", format_time(one.until)},
                   {"serial", one.serial}});
    }
    std::printf("%s\n", dump_json(j, {.indent = 2}).c_str());
    return kExitOk;
  }
  for (const IssuedCertificate& one : all) {
    std::printf("%-24s %-12s %-8s until %s  %s\n", one.identity.name.c_str(),
                std::string(to_string(one.identity.role)).c_str(), state_of(one), format_time(one.until).c_str(),
                one.serial.c_str());
  }
  return kExitOk;
}

struct RevokeCommand {
  std::string folder, name;
};

Result<int> revoke(const RevokeCommand& command) {
  BF_ASSIGN_OR_RETURN(Authority authority, Authority::open(chosen_folder(command.folder)));
  BF_TRY(authority.revoke(command.name));
  std::printf("%s is revoked: this node refuses it from now on, others after their next `butterfly cluster renew`\n",
              command.name.c_str());
  return kExitOk;
}

Result<int> rotate(const std::string& folder) {
  BF_ASSIGN_OR_RETURN(Authority authority, Authority::open(chosen_folder(folder)));
  BF_ASSIGN_OR_RETURN(const std::string next, authority.rotate());
  std::printf("%s\n", next.c_str());
  return kExitOk;
}

}  // namespace

void add_cluster_authority(Command cluster, Action& action) {
  {
    auto sub = cluster.add_subcommand("init", "A new cluster: its authority's key, and this node as its coordinator");
    const auto command = std::make_shared<InitCommand>();
    sub.add_option("DIR", command->folder, "Folder [$BUTTERFLY_HOME, else ~/.config/butterfly]");
    sub.add_option("--name", command->name, "This node's name").show_default();
    run_later(sub, action, [command] { return init(*command); });
  }
  {
    auto sub = cluster.add_subcommand("token", "Print a join token: a secret that admits one node");
    const auto command = std::make_shared<TokenCommand>();
    add_folder_option(sub, command->folder);
    sub.add_option("--expires", command->expires, "How long it can be used: 90s, 15m, 1h, 7d").show_default();
    run_later(sub, action, [command] { return token(*command); });
  }
  {
    auto sub = cluster.add_subcommand("admit", "Wait for nodes that enrol with a token, or renew their certificate");
    const auto command = std::make_shared<AdmitCommand>();
    add_folder_option(sub, command->folder);
    sub.add_option("--listen", command->listen, "HOST:PORT; port 0: the system chooses").show_default();
    sub.add_option("--count", command->members, "End after this number of nodes [never]").in_range(1, 1 << 20);
    run_later(sub, action, [command] { return admit(*command); });
  }
  {
    auto sub = cluster.add_subcommand("list", "Every certificate that was given out");
    const auto command = std::make_shared<ListCommand>();
    add_folder_option(sub, command->folder);
    sub.add_flag("--json", command->json, "JSON on stdout");
    run_later(sub, action, [command] { return list(*command); });
  }
  {
    auto sub = cluster.add_subcommand("revoke", "Declare a node's certificates void");
    const auto command = std::make_shared<RevokeCommand>();
    add_folder_option(sub, command->folder);
    sub.add_option("NAME", command->name, "The node").required();
    run_later(sub, action, [command] { return revoke(*command); });
  }
  {
    auto sub = cluster.add_subcommand("rotate", "Replace the authority's key, in three steps that cut nobody off");
    const auto folder = std::make_shared<std::string>();
    add_folder_option(sub, *folder);
    run_later(sub, action, [folder] { return rotate(*folder); });
  }
}

}  // namespace butterfly::app
