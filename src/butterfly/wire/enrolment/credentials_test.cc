// The files of a node and of its cluster's authority, and how a node becomes a member, stays one and stops being one.
#include "butterfly/wire/enrolment/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "butterfly/wire/enrolment/enrolment.h"
#include "butterfly/wire/enrolment/test_cluster_test.h"
#include "butterfly/wire/tcp/tcp_peers_test.h"

namespace butterfly {
namespace {

using std::chrono::hours;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::byte> request_of(const KeyPtr& key) {
  return make_request(key.get()).value();
}

mode_t mode_of(const std::string& path) {
  struct stat about {};
  EXPECT_EQ(::stat(path.c_str(), &about), 0) << path;
  return about.st_mode & 07777u;
}

/// `butterfly cluster admit` on a thread.
class Admission {
 public:
  explicit Admission(const TestCluster& cluster, std::chrono::milliseconds timeout = std::chrono::milliseconds(5000))
      : server_(EnrolmentServer::create({.folder = cluster.authority().folder(), .client_timeout = timeout}).value()),
        thread_([this] { EXPECT_TRUE(server_->run(stop_.get_token())); }) {}
  ~Admission() {
    stop_.request_stop();
    thread_.join();
  }
  std::string address() const { return server_->address(); }

 private:
  std::unique_ptr<EnrolmentServer> server_;
  std::stop_source stop_;
  std::thread thread_;
};

TEST(Credentials, SecretsAreTheOwnersAlone) {
  const TestCluster cluster;
  const std::string folder = cluster.authority().folder();
  static_cast<void>(cluster.authority().make_token(hours(1)));
  EXPECT_EQ(mode_of(folder), 0700u);
  for (const char* secret : {"authority.key", "node.key", "tokens", "nodes"}) {
    EXPECT_EQ(mode_of(folder + "/" + secret), 0600u) << secret;
  }
}

TEST(Credentials, AKeyThatOthersMayReadIsRefused) {
  const TestCluster cluster;
  for (const mode_t mode : {0640u, 0604u, 0660u}) {
    ASSERT_EQ(::chmod((cluster.authority().folder() + "/node.key").c_str(), mode), 0);
    const auto loaded = Credentials::load(cluster.authority().folder());
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().message, HasSubstr(fmt::format("{:04o}", mode)));
    EXPECT_THAT(loaded.error().message, HasSubstr("0600"));
  }
}

TEST(Credentials, AMissingOrForeignFileIsNamed) {
  const TestCluster cluster;
  const std::string folder = cluster.join_files("worker-a");
  ASSERT_EQ(std::rename((folder + "/crl.pem").c_str(), (folder + "/gone").c_str()), 0);
  EXPECT_THAT(Credentials::load(folder).error().message, HasSubstr("crl.pem"));
  ASSERT_EQ(std::rename((folder + "/gone").c_str(), (folder + "/crl.pem").c_str()), 0);
  ASSERT_TRUE(Credentials::load(folder));
  ASSERT_TRUE(write_file(folder + "/node.key", to_pem(make_key().value().get()), FileAccess::kOwnerOnly));
  EXPECT_THAT(Credentials::load(folder).error().message, HasSubstr("do not belong together"));
  ASSERT_TRUE(write_file(folder + "/ca.pem", "garbage\n", FileAccess::kEveryone));
  EXPECT_THAT(Credentials::load(folder).error().message, HasSubstr("ca.pem"));
}

TEST(Credentials, AnExpiredCertificateIsSaidAtTheStart) {
  const TestCluster cluster;
  static_cast<void>(cluster.join_expired("worker-a"));
  EXPECT_THAT(Credentials::load(cluster.folder() / "worker-a").error().message, HasSubstr("expired at 20"));
}

TEST(Authority, ASecondOneInTheSameFolderIsRefused) {
  const TestCluster cluster;
  EXPECT_THAT(Authority::create(cluster.authority().folder(), {}).error().message, HasSubstr("already"));
}

TEST(Authority, ATokenAdmitsOnceAndOnlyInTime) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  const KeyPtr key = make_key().value();
  const JoinToken token = authority.make_token(hours(1)).value();
  ASSERT_TRUE(authority.enrol(token.secret, "worker-a", request_of(key)));
  const auto again = authority.enrol(token.secret, "worker-b", request_of(key));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("used before"));

  const JoinToken late = authority.make_token(hours(-1)).value();
  EXPECT_THAT(authority.enrol(late.secret, "worker-b", request_of(key)).error().message, HasSubstr("expired"));
  EXPECT_THAT(authority.enrol({}, "worker-b", request_of(key)).error().message, HasSubstr("unknown"));
  EXPECT_EQ(authority.list().value().size(), 2u) << "the coordinator and worker-a";
}

TEST(Authority, ASecretIsWrittenNowhere) {
  const TestCluster cluster;
  const JoinToken token = cluster.authority().make_token(hours(1)).value();
  const std::string noted = read_file(cluster.authority().folder() + "/tokens", FileAccess::kOwnerOnly).value();
  EXPECT_THAT(noted, Not(HasSubstr(to_hex(token.secret))));
  EXPECT_THAT(noted, HasSubstr(to_hex(sha256(token.secret))));
}

TEST(Authority, ANameIsGivenOnceAndFreeAfterRevocation) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  const KeyPtr key = make_key().value();
  const auto enrol_as = [&](const std::string& name) {
    return authority.enrol(authority.make_token(hours(1)).value().secret, name, request_of(key));
  };
  ASSERT_TRUE(enrol_as("worker-a"));
  EXPECT_THAT(enrol_as("worker-a").error().message, HasSubstr("member already"));
  ASSERT_TRUE(authority.revoke("worker-a"));
  EXPECT_TRUE(authority.revoke("worker-a")) << "once more is no error: perhaps the first was cut short";
  EXPECT_EQ(authority.revoke("worker-z").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(enrol_as("worker-a"));
  for (const char* bad : {"", "Worker", "a b", "a\nb", "../x", "coordinator\n"}) EXPECT_FALSE(enrol_as(bad)) << bad;
}

// Fails when the role or the name of a certificate comes from the node that asks for it.
TEST(Authority, WhatACertificateSaysIsTheAuthoritysWord) {
  const TestCluster cluster;
  const auto access = cluster.join("coordinator-2");
  EXPECT_EQ(access.credentials->identity().role, NodeRole::kWorker);
  EXPECT_EQ(cluster.coordinator().credentials->identity().role, NodeRole::kCoordinator);
}

TEST(Authority, RequestsForOtherKeysAreRefused) {
  const KeyPtr p384(EVP_EC_gen("P-384"));
  EXPECT_THAT(read_request(request_of(p384)).error().message, HasSubstr("P-256"));
  const KeyPtr key = make_key().value();
  auto request = request_of(key);
  request[request.size() - 5] ^= std::byte{1};
  EXPECT_FALSE(read_request(request)) << "its signature is wrong";
  request.push_back(std::byte{0});
  EXPECT_FALSE(read_request(request)) << "it goes on after its end";
  EXPECT_FALSE(read_request({}));
}

TEST(JoinToken, IsReadAsItWasWrittenAndSlipsAreFound) {
  const TestCluster cluster;
  const JoinToken token = cluster.authority().make_token(hours(1)).value();
  const std::string text = encode_token(token);
  const JoinToken read = decode_token(text).value();
  EXPECT_EQ(read.secret, token.secret);
  EXPECT_EQ(read.authority, token.authority);
  EXPECT_EQ(format_time(read.expires), format_time(token.expires));
  for (std::size_t i = 4; i < text.size(); ++i) {
    std::string slip = text;
    slip[i] = slip[i] == '0' ? '1' : '0';
    const auto wrong = decode_token(slip);
    ASSERT_FALSE(wrong) << i;
    EXPECT_THAT(wrong.error().message, Not(HasSubstr(text.substr(4, 32)))) << "an error must not tell the secret";
  }
  for (const std::string& bad : {std::string(), text + "0", text.substr(1), std::string(text.size(), 'x')}) {
    EXPECT_FALSE(decode_token(bad)) << bad;
  }
}

TEST(Enrolment, ANodeBecomesAMemberWithItsOwnKey) {
  const TestCluster cluster;
  const Admission admission(cluster);
  const JoinToken token = cluster.authority().make_token(hours(1)).value();
  const std::string folder = cluster.folder() / "deep/er";
  const auto identity = enrol({.address = admission.address(), .folder = folder}, token, "worker-a", after_ms(5000));
  ASSERT_TRUE(identity) << identity.error().message;
  EXPECT_EQ(identity->name, "worker-a");
  EXPECT_EQ(identity->role, NodeRole::kWorker);
  EXPECT_EQ(mode_of(folder), 0700u);
  EXPECT_EQ(mode_of(folder + "/node.key"), 0600u);
  const NodeAccess worker{.credentials = Credentials::load(folder).value()};
  AcceptLoop loop({.access = worker});
  const auto client = connect_as(loop.address(), cluster.coordinator());
  EXPECT_TRUE(client) << client.error().message;
}

TEST(Enrolment, UsedExpiredAndUnknownTokensGetAClosedConnectionAndOneLine) {
  const LogCapture logged;
  const TestCluster cluster;
  {
    const Admission admission(cluster);
    JoinToken token = cluster.authority().make_token(hours(1)).value();
    const auto try_with = [&](const JoinToken& one, const std::string& name) {
      return enrol({.address = admission.address(), .folder = cluster.folder() / name}, one, name, after_ms(5000));
    };
    ASSERT_TRUE(try_with(token, "worker-a"));
    EXPECT_FALSE(try_with(token, "worker-b")) << "used";
    JoinToken unknown = token;
    unknown.secret[0] ^= std::byte{1};
    EXPECT_FALSE(try_with(unknown, "worker-c"));
    JoinToken expired = cluster.authority().make_token(hours(-1)).value();
    expired.expires = std::chrono::system_clock::now() + hours(1);  // what the token says does not count
    EXPECT_FALSE(try_with(expired, "worker-d"));
    expired.expires = std::chrono::system_clock::now() - hours(1);
    EXPECT_THAT(try_with(expired, "worker-e").error().message, HasSubstr("expired at")) << "said without connecting";
  }
  const std::string text = logged.text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 3) << text;
  EXPECT_THAT(text, HasSubstr("used before"));
  EXPECT_THAT(text, HasSubstr("token expired at"));
  EXPECT_FALSE(has_credentials(cluster.folder() / "worker-b"));
}

// Fails when the node sends its secret to any server that answers.
TEST(Enrolment, AnotherClustersCoordinatorIsNotToldTheSecret) {
  const LogCapture logged;
  const TestCluster ours, theirs;
  const Admission impostor(theirs);
  const JoinToken token = ours.authority().make_token(hours(1)).value();
  const auto identity =
      enrol({.address = impostor.address(), .folder = ours.folder() / "w"}, token, "worker-a", after_ms(5000));
  ASSERT_FALSE(identity);
  EXPECT_THAT(identity.error().message, HasSubstr("another cluster"));
}

TEST(Enrolment, AWorkerOfTheClusterIsNoCoordinatorToANewNode) {
  const LogCapture logged;
  const TestCluster cluster;
  AcceptLoop worker({.access = cluster.join("worker-a")});
  const JoinToken token = cluster.authority().make_token(hours(1)).value();
  EXPECT_FALSE(
      enrol({.address = worker.address(), .folder = cluster.folder() / "w"}, token, "worker-b", after_ms(5000)));
}

TEST(Enrolment, SilenceAndGarbageDelayNobody) {
  const LogCapture logged;
  const TestCluster cluster;
  const Admission admission(cluster, std::chrono::milliseconds(60'000));
  const RawClient silent(admission.address()), garbling(admission.address());
  garbling.write(as_bytes("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"));
  const auto said = garbling.read_to_end();
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->empty());
  const JoinToken token = cluster.authority().make_token(hours(1)).value();
  EXPECT_TRUE(
      enrol({.address = admission.address(), .folder = cluster.folder() / "w"}, token, "worker-a", after_ms(5000)));
}

TEST(Enrolment, ARefusalThatTheNodeMayKnowIsTold) {
  const LogCapture logged;
  const TestCluster cluster;
  static_cast<void>(cluster.join_files("worker-a"));
  const Admission admission(cluster);
  const JoinToken token = cluster.authority().make_token(hours(1)).value();
  const EnrolOptions options{.address = admission.address(), .folder = cluster.folder() / "w"};
  EXPECT_THAT(enrol(options, token, "worker-a", after_ms(5000)).error().message, HasSubstr("member already"));
  EXPECT_TRUE(enrol(options, token, "worker-b", after_ms(5000))) << "the token is not used up by that";
}

TEST(Enrolment, ARevokedNodeCannotRenew) {
  const LogCapture logged;
  const TestCluster cluster;
  const std::string folder = cluster.join_files("worker-a");
  const Admission admission(cluster);
  ASSERT_TRUE(renew({.address = admission.address(), .folder = folder}, after_ms(5000)));
  ASSERT_TRUE(cluster.authority().revoke("worker-a")) << "revokes the old certificate and the new one";
  const auto renewed = renew({.address = admission.address(), .folder = folder}, after_ms(5000));
  ASSERT_FALSE(renewed);
  EXPECT_THAT(renewed.error().message, HasSubstr("revoked"));
}

// Fails when a step of the rotation cuts nodes that have done their part from nodes that have not yet.
TEST(Enrolment, ARotationCutsNobodyOffAtAnyStep) {
  const LogCapture logged;
  const TestCluster cluster;
  const std::string a = cluster.join_files("worker-a"), b = cluster.join_files("worker-b");
  const auto access = [](const std::string& folder) {
    return NodeAccess{.credentials = Credentials::load(folder).value()};
  };
  const auto all_talk = [&](const char* when) {
    const std::vector<std::string> folders{cluster.authority().folder(), a, b};
    for (const std::string& server : folders) {
      AcceptLoop loop({.access = access(server)});
      for (const std::string& client : folders) {
        const auto channel = connect_as(loop.address(), access(client));
        EXPECT_TRUE(channel) << when << ": " << client << " to " << server << ": " << channel.error().message;
      }
    }
  };
  const Admission admission(cluster);
  const auto renewed = [&](const std::string& folder) {
    const auto identity = renew({.address = admission.address(), .folder = folder}, after_ms(5000));
    EXPECT_TRUE(identity) << identity.error().message;
  };
  const std::string before = read_file(a + "/ca.pem", FileAccess::kEveryone).value();
  for (const char* step : {"1", "2", "3"}) {
    EXPECT_THAT(cluster.authority().rotate().value(), HasSubstr(fmt::format("step {} of 3", step)));
    all_talk(step);
    renewed(a);
    all_talk(step);
    renewed(b);
    all_talk(step);
  }
  const std::string after = read_file(a + "/ca.pem", FileAccess::kEveryone).value();
  EXPECT_NE(before, after);
  EXPECT_EQ(read_certificates(after, "ca.pem").value().size(), 1u);
}

}  // namespace
}  // namespace butterfly
