#include "butterfly/cluster/control/control_label.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

TEST(ControlLabel, IsReadAsItWasWritten) {
  WorkerIdentity zeros{};
  for (const std::string& name : {std::string(), std::string("host, process 1"), std::string(47, 'x')}) {
    EXPECT_EQ(parse_control_label(encode_control_label({.coordinator = name})).coordinator, name);
    EXPECT_FALSE(parse_control_label(encode_control_label({.coordinator = name})).lost);
    for (const WorkerIdentity& identity : {zeros, make_session_id()}) {
      const auto read = parse_control_label(encode_control_label({.coordinator = name, .lost = identity}));
      EXPECT_EQ(read.coordinator, name);
      EXPECT_EQ(read.lost, identity);
    }
  }
}

TEST(ControlLabel, ALongNameIsCutSoThatTheLabelFits) {
  const std::string name(100, 'x');
  EXPECT_EQ(encode_control_label({.coordinator = name}).size(), kLabelBytesMax);
  const auto label = encode_control_label({.coordinator = name, .lost = make_session_id()});
  EXPECT_EQ(label.size(), kLabelBytesMax);
  EXPECT_EQ(parse_control_label(label).coordinator, std::string(47, 'x'));
}

TEST(ControlLabel, OnlySixteenBytesAreAnIdentity) {
  EXPECT_FALSE(read_worker_identity({}));
  EXPECT_FALSE(read_worker_identity(std::string(15, 'x')));
  EXPECT_FALSE(read_worker_identity(std::string(17, 'x')));
  const WorkerIdentity identity = make_session_id();
  EXPECT_EQ(read_worker_identity(to_bytes(identity)), identity);
}

}  // namespace
}  // namespace butterfly
