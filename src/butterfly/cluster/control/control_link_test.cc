#include "butterfly/cluster/control/control_link.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

NodeDescriptor node() {
  NodeDescriptor node;
  node.name = "left";
  node.threads = 2;
  node.matmuls = {{"f16", 10.5, 80}, {"q4_0", 20, 160}, {"attention", 9, 70}, {"attention_q8_0", 6, 60}};
  return node;
}

TEST(ControlLink, ANodesMatmulsTravelWithIt) {
  control::Node message;
  store(node(), message);
  const auto heard = read_node(message);
  ASSERT_TRUE(heard) << heard.error().message;
  EXPECT_EQ(heard->matmuls, node().matmuls);
  EXPECT_EQ(message.matmuls_size(), 3) << "of types that coordinators of earlier versions know";
}

TEST(ControlLink, MatmulsThatNoNodeCanHaveAreRefused) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const MatmulRate& bad :
       {MatmulRate{"q9_9", 1, 1}, MatmulRate{"attention_q8_0", -1, 1}, MatmulRate{"", 1, 1}, MatmulRate{"f16", -1, 1},
        MatmulRate{"f16", 1, kInfinity}, MatmulRate{"f16", std::nan(""), 1}}) {
    NodeDescriptor said = node();
    said.matmuls.push_back(bad);
    control::Node message;
    store(said, message);
    const auto heard = read_node(message);
    ASSERT_FALSE(heard) << bad.type;
    EXPECT_EQ(heard.error().code, ErrorCode::kProtocol);
  }
  NodeDescriptor many = node();
  many.matmuls.resize(18, {"f16", 1, 1});  // one of which is a cache's
  control::Node message;
  store(many, message);
  EXPECT_FALSE(read_node(message));
}

/// "left" became "l\xffft" on its way.
std::vector<std::byte> hello_with_a_name_that_is_not_utf8() {
  control::ControlMessage message;
  store(node(), *message.mutable_worker_hello()->mutable_node());
  std::string bytes = message.SerializeAsString();
  bytes[bytes.find("left") + 1] = '\xff';
  const ByteSpan span = as_bytes(bytes);
  return {span.begin(), span.end()};
}

// Fails when protobuf prints what it thinks of a peer's names.
TEST(ControlLink, NamesThatAreNotUtf8AreRefusedInASentenceAndNothingIsPrinted) {
  auto [near, far] = make_inproc_pair();
  ControlLink link(std::move(near));
  testing::internal::CaptureStderr();
  EXPECT_TRUE(far->send({.meta = hello_with_a_name_that_is_not_utf8()}, after_ms(1000)));
  const auto heard = link.receive(after_ms(1000));
  control::ControlMessage said;
  said.mutable_worker_hello()->mutable_node()->set_name(
      "l\xff"
      "ft");
  const Status sent = link.send(said);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_FALSE(heard);
  EXPECT_EQ(heard.error().code, ErrorCode::kProtocol);
  EXPECT_NE(heard.error().message.find("whose names are UTF-8"), std::string::npos) << heard.error().message;
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(sent.error().message.find("has a name that is not UTF-8"), std::string::npos) << sent.error().message;
  said.mutable_worker_hello()->mutable_node()->set_name("left");
  EXPECT_TRUE(link.send(said)) << "the next message is not blamed";
}

TEST(ControlLink, ExchangeTimesTravelAndWhatNoClockShowsIsNothingMeasured) {
  const ExchangeTimes times{
      .one_row_s = 50e-6, .many_rows = 64, .many_rows_s = 2e-3, .one_row_block_s = 1e-3, .many_rows_block_s = 5e-3};
  control::ReadyShare message;
  store(times, message);
  const ExchangeTimes heard = read_exchange_times(message);
  EXPECT_DOUBLE_EQ(heard.one_row_s, times.one_row_s);
  EXPECT_DOUBLE_EQ(heard.many_rows_s, times.many_rows_s);
  EXPECT_EQ(heard.many_rows, 64);
  EXPECT_FALSE(read_exchange_times({}).measured());
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    control::ReadyShare few = message, many = message;
    few.set_one_row_us(bad);
    many.set_many_rows_us(bad);
    EXPECT_FALSE(read_exchange_times(few).measured()) << bad;
    EXPECT_FALSE(read_exchange_times(many).measured()) << bad;
  }
  message.set_many_rows(-64);
  EXPECT_FALSE(read_exchange_times(message).measured());
}

/// Of a model that could be one.
Assignment some_assignment() {
  Assignment assignment;
  assignment.model = {.hash = std::string(62, '0') + "a7", .bytes = 5, .name = "some"};
  assignment.config = *named_config("butterfly-demo");
  return assignment;
}

/// Member 1 of 3 of the second of two stages.
control::Assign member_of_a_group() {
  Assignment assignment = some_assignment();
  assignment.epoch = Epoch(7);
  assignment.stage = {.first_layer = 2, .last_layer = 4, .head = true, .slices = {{3, 5}, {8, 16}}};
  assignment.rank = Rank(1);
  assignment.stages = 2;
  assignment.group = {"a:1", "b:2", "c:3"};
  assignment.member = 1;
  control::Assign message;
  store(std::span(&assignment, 1), message);
  return message;
}

TEST(ReadAssignment, AMemberOfATensorGroupLearnsItsSlicesAndWhoTheOthersAre) {
  const auto assignments = read_assignments(member_of_a_group());
  ASSERT_TRUE(assignments) << assignments.error().message;
  ASSERT_EQ(assignments->size(), 1u);
  const Assignment* read = &assignments->front();
  EXPECT_EQ(read->stage.slices, HeldSlices({3, 5}, {8, 16}));
  EXPECT_EQ(read->group, (std::vector<std::string>{"a:1", "b:2", "c:3"}));
  EXPECT_EQ(read->member, 1);
  EXPECT_FALSE(read->leads());
  EXPECT_EQ(describe(*read), "stage 2 of 2, slices 3-4, expert slices 8-15");
}

TEST(ReadAssignment, TheModelAndItsSettingsArrive) {
  Assignment assignment = some_assignment();
  assignment.settings = {.kv_type = DType::kF32, .wire_type = DType::kQ8_0, .compression = Compression::kZstd};
  control::Assign message;
  store(std::span(&assignment, 1), message);
  EXPECT_EQ(message.model_sha256().size(), 32u);
  const auto assignments = read_assignments(message);
  ASSERT_TRUE(assignments) << assignments.error().message;
  const Assignment& read = assignments->front();
  EXPECT_EQ(read.model.hash, assignment.model.hash);
  EXPECT_EQ(read.model.bytes, 5u);
  EXPECT_EQ(read.model.name, "some");
  EXPECT_EQ(read.config.vocab, assignment.config.vocab);
  EXPECT_EQ(read.settings.kv_type, DType::kF32);
  EXPECT_EQ(read.settings.wire_type, DType::kQ8_0);
  EXPECT_EQ(read.settings.compression, Compression::kZstd);
}

TEST(ReadAssignment, ModelsAndSettingsThatNoStageHasAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(control::Assign&)>>> spoilt{
      {"a SHA-256 of 31 bytes", [](auto& m) { m.mutable_model_sha256()->pop_back(); }},
      {"a SHA-256 of 0 bytes", [](auto& m) { m.clear_model_sha256(); }},
      {"number of layers is 0", [](auto& m) { m.clear_config(); }},
      {"a model's mlp is number 7", [](auto& m) { m.mutable_config()->set_mlp(7); }},
      {"a cache of type 4", [](auto& m) { m.mutable_settings()->set_kv_type(4); }},
      {"a cache of type 4294967295", [](auto& m) { m.mutable_settings()->set_kv_type(~0u); }},
      {"activations of type 4", [](auto& m) { m.mutable_settings()->set_wire_type(4); }},
      {"activations of type 256", [](auto& m) { m.mutable_settings()->set_wire_type(256); }},
      {"compression 4", [](auto& m) { m.mutable_settings()->set_compression(4); }},
  };
  for (const auto& [sentence, spoil] : spoilt) {
    control::Assign message = member_of_a_group();
    spoil(message);
    const auto read = read_assignments(message);
    ASSERT_FALSE(read) << sentence;
    EXPECT_NE(read.error().message.find(sentence), std::string::npos) << read.error().message;
  }
}

TEST(ControlLink, AnExchangeThatIsNotKnownHereIsNone) {
  control::ReadyShare message;
  message.set_exchange(static_cast<std::uint32_t>(ExchangeEngine::kBoth));
  EXPECT_EQ(read_exchange(message), ExchangeEngine::kBoth);
  message.set_exchange(4);
  EXPECT_EQ(read_exchange(message), ExchangeEngine::kNone);
}

control::Share& share(control::Assign& message) {
  return *message.mutable_shares(0);
}

TEST(ReadAssignment, GroupsThatContradictThemselvesAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(control::Assign&)>>> spoilt{
      {"a member beyond the group", [](auto& m) { share(m).set_member(3); }},
      {"a member before the group", [](auto& m) { share(m).set_member(-1); }},
      {"neither slices nor experts",
       [](auto& m) {
         share(m).mutable_stage()->set_last_slice(3);
         share(m).mutable_stage()->set_last_expert_slice(8);
       }},
      {"slices that end before they begin", [](auto& m) { share(m).mutable_stage()->set_last_slice(2); }},
      {"experts that end before they begin", [](auto& m) { share(m).mutable_stage()->set_last_expert_slice(7); }},
      {"experts beyond the last", [](auto& m) { share(m).mutable_stage()->set_last_expert_slice(33); }},
      {"experts before the first", [](auto& m) { share(m).mutable_stage()->set_first_expert_slice(-1); }},
      {"slices beyond the last", [](auto& m) { share(m).mutable_stage()->set_last_slice(33); }},
      {"slices before the first", [](auto& m) { share(m).mutable_stage()->set_first_slice(-1); }},
      {"slices without a group", [](auto& m) { share(m).clear_group(), share(m).set_member(0); }},
      {"all slices in a group",
       [](auto& m) {
         control::Stage& stage = *share(m).mutable_stage();
         stage.set_first_slice(0);
         stage.set_last_slice(32);
         stage.set_first_expert_slice(0);
         stage.set_last_expert_slice(32);
       }},
      {"more members than slices",
       [](auto& m) {
         while (share(m).group_size() < 33) share(m).add_group("d:4");
       }},
      {"a next stage after the last", [](auto& m) { share(m).set_member(0), share(m).set_next_address("d:4"); }},
      {"a next stage for a member that does not lead",
       [](auto& m) { share(m).set_rank(0), share(m).set_next_address("d:4"); }},
  };
  for (const auto& [what, spoil] : spoilt) {
    control::Assign message = member_of_a_group();
    spoil(message);
    const auto read = read_assignments(message);
    ASSERT_FALSE(read) << what;
    EXPECT_EQ(read.error().code, ErrorCode::kProtocol) << what;
  }
}

/// The first and the third of three stages, and who comes between them.
std::vector<Assignment> scattered() {
  Assignment first = some_assignment();
  first.stage = {.first_layer = 0, .last_layer = 2, .embedding = true};
  first.stages = 3;
  first.next_address = "b:2";
  Assignment last = first;
  last.stage = {.first_layer = 3, .last_layer = 4, .head = true};
  last.rank = Rank(2);
  last.next_address = {};
  return {first, last};
}

TEST(ReadAssignment, AWorkerMayHaveSeveralStages) {
  control::Assign message;
  store(scattered(), message);
  const auto read = read_assignments(message);
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*read)[i].stage, scattered()[i].stage);
    EXPECT_EQ((*read)[i].rank, scattered()[i].rank);
    EXPECT_EQ((*read)[i].next_address, scattered()[i].next_address);
    EXPECT_EQ((*read)[i].stages, 3);
  }
  EXPECT_EQ(describe(*read), "stages 1 and 3 of 3");
}

TEST(ReadAssignment, StagesOutOfOrderTooManyOrNoneAreRefused) {
  control::Assign none;
  EXPECT_FALSE(read_assignments(none));
  control::Assign twice;
  store(std::vector{scattered()[0], scattered()[0]}, twice);
  EXPECT_FALSE(read_assignments(twice));
  std::vector<Assignment> many(kSharesMax + 1, scattered()[0]);
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i].rank = Rank(static_cast<int>(i));
    many[i].stages = kSharesMax + 2;
  }
  control::Assign message;
  store(many, message);
  EXPECT_FALSE(read_assignments(message));
  message.mutable_shares()->RemoveLast();
  EXPECT_TRUE(read_assignments(message));
}

TEST(DataLabel, MembersOfAGroupHaveLabelsForEachStageAsManyAsThereAreSlices) {
  for (int member = 0; member < kReductionSlices; ++member) {
    const std::string what = member_label(Rank(3), member);
    const auto label = parse_data_label(data_label(what, Epoch(9)));
    ASSERT_TRUE(label) << member;
    EXPECT_EQ(label->what, what);
    EXPECT_EQ(label->epoch, Epoch(9));
  }
  for (const char* label : {"member32.0@1", "member.0@1", "member-1.0@1", "member01.0@1", "member1@1", "member1.x@1"}) {
    EXPECT_FALSE(parse_data_label(label)) << label;
  }
}

}  // namespace
}  // namespace butterfly
