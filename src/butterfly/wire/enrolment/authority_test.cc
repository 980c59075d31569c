// What the authority promises when a command was cut short, and when a member asks for more than it should get.
#include "butterfly/wire/enrolment/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/wire/enrolment/enrolment.h"
#include "butterfly/wire/enrolment/test_cluster_test.h"
#include "butterfly/wire/tcp/tcp_peers_test.h"

namespace butterfly {
namespace {

using std::chrono::hours;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::byte> new_request() {
  return make_request(make_key().value().get()).value();
}

/// While it lives, this file cannot be replaced: a directory is where its new content would be written.
class Blocked {
 public:
  explicit Blocked(const std::string& path) : path_(path + ".new") { EXPECT_EQ(::mkdir(path_.c_str(), 0700), 0); }
  ~Blocked() { EXPECT_EQ(::rmdir(path_.c_str()), 0); }

 private:
  const std::string path_;
};

std::string ledger_of(const Authority& authority) {
  return read_file(authority.folder() + "/nodes", FileAccess::kOwnerOnly, ~std::size_t{0}).value();
}

void write_ledger_of(const Authority& authority, const std::string& text) {
  ASSERT_TRUE(write_file(authority.folder() + "/nodes", text, FileAccess::kOwnerOnly));
}

/// A line of the ledger as versions before this one wrote it, valid for `valid` from now.
std::string old_line(int number, const std::string& name, hours valid) {
  const auto until = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() + valid);
  return fmt::format("{:040X} worker {} 0 {}\n", 0x1000000 + number, until, name);
}

bool coordinator_accepts(const TestCluster& cluster, const NodeAccess& client) {
  const LogCapture logged;
  AcceptLoop loop({.access = cluster.coordinator()});
  return connect_as(loop.address(), client, ConnectionRole::kStatus).has_value();
}

TEST(Authority, ARevocationWhoseListCouldNotBeWrittenIsAnErrorAndCompletedByTheNextAttempt) {
  const TestCluster cluster;
  const NodeAccess worker = cluster.join("worker-a");
  Authority authority = cluster.authority();
  {
    const Blocked blocked(authority.folder() + "/crl.pem");
    const Status revoked = authority.revoke("worker-a");
    ASSERT_FALSE(revoked);
    EXPECT_THAT(revoked.error().message, HasSubstr("not published"));
  }
  EXPECT_TRUE(coordinator_accepts(cluster, worker)) << "the list is still empty";
  const Status again = authority.revoke("worker-a");
  EXPECT_TRUE(again) << again.error().message;
  EXPECT_FALSE(coordinator_accepts(cluster, worker));
}

TEST(Authority, RenewalLooksAtTheLedgerAndNotAtTheListAlone) {
  const LogCapture logged;
  const TestCluster cluster;
  const std::string folder = cluster.join_files("worker-a");
  Authority authority = cluster.authority();
  const auto server = EnrolmentServer::create({.folder = authority.folder()}).value();
  {
    const std::jthread admitting([&](const std::stop_token& stop) { EXPECT_TRUE(server->run(stop)); });
    const Blocked blocked(authority.folder() + "/crl.pem");
    ASSERT_FALSE(authority.revoke("worker-a"));
    const auto renewed = renew({.address = server->address(), .folder = folder}, after_ms(5000));
    ASSERT_FALSE(renewed) << "with a certificate that the ledger says is revoked";
    EXPECT_THAT(renewed.error().message, HasSubstr("revoked"));
  }
  EXPECT_EQ(authority.list().value().size(), 2u) << "nothing was given out for it";
}

TEST(Authority, ARevokedCertificateIsNotRenewedBecauseItsNameWasGivenToAnother) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  static_cast<void>(cluster.join_files("worker-a"));
  const std::string stolen = authority.list().value().back().serial;
  ASSERT_TRUE(authority.revoke("worker-a"));
  ASSERT_TRUE(authority.enrol(authority.make_token(hours(1)).value().secret, "worker-a", new_request()));
  EXPECT_FALSE(authority.renew({.name = "worker-a", .serial = stolen}, new_request()));
  EXPECT_FALSE(authority.renew({.name = "worker-a", .serial = "1234"}, new_request())) << "never given out";
  const std::string good = authority.list().value().back().serial;
  EXPECT_TRUE(authority.renew({.name = "worker-a", .serial = good}, new_request()));
}

TEST(Authority, AdmittingPublishesWhatWasRevoked) {
  const TestCluster cluster;
  const NodeAccess worker = cluster.join("worker-a");
  Authority authority = cluster.authority();
  {
    const Blocked blocked(authority.folder() + "/crl.pem");
    ASSERT_FALSE(authority.revoke("worker-a"));
  }
  ASSERT_TRUE(EnrolmentServer::create({.folder = authority.folder()}));
  EXPECT_FALSE(coordinator_accepts(cluster, worker));
}

TEST(Authority, ALedgerOfManyMegabytesStopsNothing) {
  if (kThreadsWatched) GTEST_SKIP() << "minutes, and one thread";
  const TestCluster cluster;
  const NodeAccess worker = cluster.join("worker-a");
  Authority authority = cluster.authority();
  std::string ledger = ledger_of(authority);
  for (int i = 0; ledger.size() < (3u << 20); ++i) ledger += old_line(i, "worker-a", hours(1000));
  write_ledger_of(authority, ledger);
  EXPECT_TRUE(authority.enrol(authority.make_token(hours(1)).value().secret, "worker-b", new_request()));
  const Status revoked = authority.revoke("worker-a");
  ASSERT_TRUE(revoked) << revoked.error().message;
  EXPECT_GT(std::filesystem::file_size(authority.folder() + "/crl.pem"), 1u << 20);
  EXPECT_FALSE(coordinator_accepts(cluster, worker));
  EXPECT_TRUE(coordinator_accepts(cluster, cluster.join("worker-c"))) << "who reads a list of that size, too";
  EXPECT_TRUE(authority.rotate());
  EXPECT_TRUE(authority.renew_own());
}

TEST(Authority, ANodeGetsOnlySoManyCertificatesADay) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  static_cast<void>(cluster.join_files("worker-a"));
  static_cast<void>(cluster.join_files("worker-b"));
  for (int i = 1; i < kCertificatesPerDay; ++i) ASSERT_TRUE(authority.renew({.name = "worker-a"}, new_request())) << i;
  const auto refused = authority.renew({.name = "worker-a"}, new_request());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr(fmt::format("the limit is {}", kCertificatesPerDay)));
  EXPECT_TRUE(authority.renew({.name = "worker-b"}, new_request())) << "others are not held up";
  EXPECT_TRUE(authority.revoke("worker-a"));
}

TEST(Authority, CertificatesOfADayAgoAndThoseOfUnknownDateDoNotCount) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  static_cast<void>(cluster.join_files("worker-a"));
  const auto issued = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() - hours(25));
  std::string ledger = ledger_of(authority);
  for (int i = 0; i < 100; ++i) {
    std::string line = old_line(i, "worker-a", hours(1000));
    if (i % 2 == 0) line.insert(line.size() - 1, fmt::format(" {}", issued));
    ledger += line;
  }
  write_ledger_of(authority, ledger);
  EXPECT_EQ(authority.list().value().size(), 102u);
  EXPECT_TRUE(authority.renew({.name = "worker-a"}, new_request()));
}

// Fails when a clock that is three years ahead for a moment makes a revoked certificate unknown.
TEST(Authority, WhatExpiredBeforeAnyAuthorityWasMadeLeavesTheLedger) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  write_ledger_of(
      authority, ledger_of(authority) + old_line(1, "old", hours(-24 * 3700)) + old_line(2, "late", hours(-24 * 1100)));
  static_cast<void>(cluster.join_files("worker-a"));
  EXPECT_THAT(ledger_of(authority), Not(HasSubstr(" old")));
  EXPECT_THAT(ledger_of(authority), HasSubstr(" late"));
}

TEST(Authority, AStepOfARotationThatWasCutShortIsCompletedBeforeTheNext) {
  const TestCluster cluster;
  Authority authority = cluster.authority();
  {
    const Blocked blocked(authority.folder() + "/ca.pem");
    ASSERT_FALSE(authority.rotate());
  }
  EXPECT_THAT(authority.rotate().value(), HasSubstr("step 1 of 3"));
  {
    const Blocked blocked(authority.folder() + "/node.pem");
    ASSERT_FALSE(authority.rotate());
  }
  EXPECT_THAT(authority.rotate().value(), HasSubstr("step 2 of 3"));
  EXPECT_THAT(authority.rotate().value(), HasSubstr("step 3 of 3"));
  EXPECT_TRUE(Credentials::load(authority.folder()));
}

// Fails when a process that dies between two renames leaves a folder without an authority.
TEST(Authority, ARotationThatDiedBetweenTwoRenamesIsFinishedWhenItIsOpened) {
  const std::vector<std::pair<std::string, std::string>> renames{{"authority.key", "former-authority.key"},
                                                                 {"authority.pem", "former-authority.pem"},
                                                                 {"next-authority.key", "authority.key"},
                                                                 {"next-authority.pem", "authority.pem"}};
  for (std::size_t done = 0; done <= renames.size(); ++done) {
    const TestCluster cluster;
    Authority authority = cluster.authority();
    EXPECT_THAT(authority.rotate().value(), HasSubstr("step 1 of 3"));
    const std::string folder = authority.folder() + "/";
    for (std::size_t i = 0; i < done; ++i) {
      std::filesystem::rename(folder + renames[i].first, folder + renames[i].second);
    }
    auto again = Authority::open(authority.folder());
    ASSERT_TRUE(again) << done << ": " << again.error().message;
    EXPECT_THAT(again->rotate().value(), HasSubstr("step 2 of 3")) << done;
    EXPECT_THAT(again->rotate().value(), HasSubstr("step 3 of 3")) << done;
    EXPECT_TRUE(Credentials::load(authority.folder())) << done;
  }
}

TEST(Credentials, TheEnrolmentContextIsMadeAgainOnlyWhenTheFilesHaveChanged) {
  const TestCluster cluster;
  const auto credentials = Credentials::load(cluster.authority().folder()).value();
  const TlsContext first = credentials->enrolment_context().value();
  EXPECT_EQ(credentials->enrolment_context().value().get(), first.get());
  ASSERT_TRUE(cluster.authority().republish());
  EXPECT_NE(credentials->enrolment_context().value().get(), first.get()) << "at once";
}

}  // namespace
}  // namespace butterfly
