// A cluster's authority in a folder of its own, and members with whatever certificates a test needs.
#pragma once

#include <gtest/gtest.h>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "butterfly/base/log.h"
#include "butterfly/base/test_folder_test.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/enrolment/authority.h"
#include "butterfly/wire/enrolment/credentials.h"
#include "butterfly/wire/enrolment/secret_files.h"

namespace butterfly {

class TestCluster {
 public:
  TestCluster() : authority_(Authority::create(folder_ / "coordinator", {}).value()) {}

  NodeAccess coordinator() const { return {.credentials = Credentials::load(authority_.folder()).value()}; }

  /// The files of a new worker, by way of a token.
  std::string join_files(const std::string& name) const {
    Authority authority = authority_;
    const KeyPtr key = make_key().value();
    const JoinToken token = authority.make_token(std::chrono::hours(1)).value();
    const auto files = authority.enrol(token.secret, name, make_request(key.get()).value());
    EXPECT_TRUE(files) << (files ? "" : files.error().message);
    EXPECT_TRUE(make_secret_folder(folder_ / name));
    EXPECT_TRUE(write_node_files(folder_ / name, *files, to_pem(key.get())));
    return folder_ / name;
  }
  NodeAccess join(const std::string& name) const {
    return {.credentials = Credentials::load(join_files(name)).value()};
  }

  /// A node that still uses a certificate of two hours ago. Loading it is refused, so it is exchanged afterwards.
  NodeAccess join_expired(const std::string& name) const {
    NodeAccess access = join(name);
    Authority authority = authority_;
    const KeyPtr key = make_key().value();
    const NodeIdentity identity{.name = name, .role = NodeRole::kWorker};
    const auto files = authority.renew(identity, make_request(key.get()).value(), {.valid = std::chrono::hours(-2)});
    EXPECT_TRUE(files);
    EXPECT_TRUE(write_node_files(folder_ / name, *files, to_pem(key.get())));
    return access;
  }

  /// What `butterfly cluster renew` brings to a node besides its certificate.
  void publish_to(const std::string& folder) const {
    for (const char* file : {kAuthoritiesFile, kRevocationsFile}) {
      const std::string content = read_file(authority_.folder() + "/" + file, FileAccess::kEveryone).value();
      EXPECT_TRUE(write_file(folder + "/" + file, content, FileAccess::kEveryone));
    }
  }

  Authority authority() const { return authority_; }
  const TestFolder& folder() const { return folder_; }

 private:
  TestFolder folder_;
  Authority authority_;
};

inline Result<ChannelPtr> connect_as(const std::string& address, const NodeAccess& access,
                                     ConnectionRole role = ConnectionRole::kData) {
  ConnectOptions options;
  options.introduction.role = role;
  options.access = access;
  return connect_tcp(address, options, after_ms(5000));
}

/// What is logged while this lives.
class LogCapture {
 public:
  LogCapture() : before_(redirect_log(&text_)) {}
  /// Only after the threads that log have ended.
  ~LogCapture() { redirect_log(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream* before_;
};

}  // namespace butterfly
