// A member of a tensor group asks for the rows and columns that it computes with, gets them, and holds no more.
#include "butterfly/stage/fetched_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/cluster/worker/weight_transfer.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/plan/cost/cost.h"
#include "butterfly/stage/stage_parts.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Wide enough for panels and norms not to count, with heads and slices that 32 members divide evenly.
ModelConfig even_config() {
  ModelConfig config = *named_config("llama-1.1b");
  config.layers = 2;
  config.model_dim = 256;
  config.heads = config.kv_heads = 32;
  config.head_dim = 64;
  config.ff_dim = 2048;
  config.vocab = 4096;
  return config;
}

/// Fewer key/value heads than members, slices of two and of three blocks, a vocabulary that nobody divides evenly.
ModelConfig uneven_config() {
  ModelConfig config = even_config();
  config.kv_heads = 2;
  config.ff_dim = 2336;
  config.vocab = 4001;
  return config;
}

ModelConfig tied_config() {
  ModelConfig config = even_config();
  config.tied_head = true;
  config.qkv_bias = config.mlp_bias = config.attention_output_bias = true;
  return config;
}

/// What a member of those slices received and holds.
struct Received {
  std::uint64_t bytes = 0;
  std::uint64_t held = 0;
  std::uint64_t planned = 0;
};

/// One thread fetches and packs: where threads are watched, the first type is enough.
std::vector<DType> types(std::vector<DType> all) {
  if (kThreadsWatched) all.resize(1);
  return all;
}

class FetchedShare : public ::testing::TestWithParam<DType> {
 protected:
  static Checkpoint checkpoint_of(const ModelConfig& config) {
    return *random_checkpoint(config, {.seed = 9, .type = GetParam()});
  }

  static Received receive(const Checkpoint& checkpoint, const SliceRange& slices) {
    StageParts parts;
    return receive(checkpoint, slices, parts);
  }

  static Received receive(const Checkpoint& checkpoint, const SliceRange& slices, StageParts& parts) {
    const StageAssignment share{
        .last_layer = checkpoint.config.layers, .embedding = true, .head = true, .slices = slices};
    Received received;
    const WeightProvider provider = provide_weights(checkpoint.weights);
    const WeightProvider counting = [&](const std::string& name, const WeightPart& part) -> Result<NamedBytes> {
      auto given = provider(name, part);
      if (given) received.bytes += given->bytes.size();
      return given;
    };
    DirectWeightFetcher fetcher(counting);
    ThreadTeam team(1);
    const auto source = [&]() -> Result<std::shared_ptr<const WeightSource>> {
      return std::make_shared<FetchedWeights>(checkpoint.config, share, fetcher,
                                              parts.kept_for(checkpoint.config, share));
    };
    const Status status = parts.complete(checkpoint.config, share, source, team, {});
    EXPECT_TRUE(status) << status.error().message;
    received.held = parts.bytes(share);
    received.planned = share_bytes(*model_cost(checkpoint.config, DType::kF16), share, {}).weights;
    return received;
  }

  static std::vector<std::byte> stored(const PackedMatrix& matrix) {
    const std::uint64_t row = *row_bytes(matrix.type(), static_cast<std::uint64_t>(matrix.cols()));
    std::vector<std::byte> bytes(row * static_cast<std::uint64_t>(matrix.rows()));
    matrix.unpack({0, matrix.rows()}, {0, matrix.cols()}, bytes, row);
    return bytes;
  }
  static void expect_same(const PackedMatrix& a, const PackedMatrix& b, std::string_view name) {
    EXPECT_TRUE(a.rows() == b.rows() && a.cols() == b.cols() && stored(a) == stored(b)) << name;
  }
  static void expect_same_parts(const ModelConfig& config, const SliceRange& slices, const StageParts& a,
                                const StageParts& b) {
    for (int layer = 0; layer < config.layers; ++layer) {
      for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
        expect_same(*a.block(layer, slices)->matrix(name), *b.block(layer, slices)->matrix(name), name);
      }
    }
    expect_same(*a.embedding(slices)->table(), *b.embedding(slices)->table(), "embedding");
    expect_same(*a.head(slices)->table(), *b.head(slices)->table(), "head");
  }

  static void expect_near(std::uint64_t actual, std::uint64_t expected, double share) {
    EXPECT_NEAR(static_cast<double>(actual), static_cast<double>(expected), share * static_cast<double>(expected));
  }
};

/// Norms, and biases of sums: every member has all of them.
std::uint64_t bytes_of_everybody(const ModelConfig& config) {
  std::uint64_t bytes = 0;
  for (const auto& [whole, part] :
       expected_parts(config, {.last_layer = config.layers, .embedding = true, .head = true}, {0, 1})) {
    if (whole.rows == 1 && part.of_cols.size() == whole.cols) bytes += whole.bytes;
  }
  return bytes;
}

TEST_P(FetchedShare, IsInProportionToTheSlices) {
  for (const ModelConfig& config : {even_config(), tied_config()}) {
    const Checkpoint checkpoint = checkpoint_of(config);
    const Received whole = receive(checkpoint, {});
    const std::uint64_t all = bytes_of_everybody(config);
    EXPECT_LT(static_cast<double>(all), 0.005 * static_cast<double>(whole.bytes));
    for (const SliceRange slices : {SliceRange{0, 1}, {1, 12}, {12, 32}, {31, 32}}) {
      SCOPED_TRACE(fmt::format("slices {} to {}", slices.first, slices.last));
      const Received share = receive(checkpoint, slices);
      const auto part = [&](std::uint64_t bytes) {
        return all + (bytes - all) * static_cast<unsigned>(slices.count()) / kReductionSlices;
      };
      expect_near(share.bytes, part(whole.bytes), 0.002);
      expect_near(share.held, part(whole.held), 0.01);
    }
  }
}

TEST_P(FetchedShare, IsWhatThePlanSays) {
  for (const ModelConfig& config : {even_config(), uneven_config(), tied_config()}) {
    const Checkpoint checkpoint = checkpoint_of(config);
    for (const SliceRange slices : {SliceRange{}, {0, 1}, {1, 12}, {16, 32}, {21, 32}}) {
      SCOPED_TRACE(fmt::format("slices {} to {}", slices.first, slices.last));
      const Received share = receive(checkpoint, slices);
      expect_near(share.bytes, share.planned, 0.01);
      expect_near(share.held, share.planned, 0.02);
    }
  }
}

TEST_P(FetchedShare, OfOtherSlicesIsFetchedAsFarAsItIsNotHere) {
  for (const ModelConfig& config : {even_config(), uneven_config(), tied_config()}) {
    const Checkpoint checkpoint = checkpoint_of(config);
    const Received whole = receive(checkpoint, {});
    for (const auto& [before, after] : std::vector<std::pair<SliceRange, SliceRange>>{
             {{0, 16}, {0, 20}}, {{12, 20}, {8, 28}}, {{24, 32}, {16, 32}}, {{8, 24}, {12, 20}}, {{0, 8}, {24, 32}}}) {
      SCOPED_TRACE(fmt::format("slices {} to {}", after.first, after.last));
      StageParts parts;
      receive(checkpoint, before, parts);
      const Received more = receive(checkpoint, after, parts);
      int slices = 0;
      for (int slice = after.first; slice < after.last; ++slice) slices += slice < before.first || slice >= before.last;
      // Norms and biases come again; one key/value head may be needed by slices on both sides.
      const double allowed = config.kv_heads == config.heads ? 0.015 : 0.06;
      EXPECT_NEAR(static_cast<double>(more.bytes) / static_cast<double>(whole.bytes), 1.0 * slices / kReductionSlices,
                  allowed);
      StageParts fresh;
      receive(checkpoint, after, fresh);
      expect_same_parts(config, after, parts, fresh);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FetchedShare,
                         testing::ValuesIn(types({DType::kQ4_0, DType::kF32, DType::kF16, DType::kQ8_0})),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

/// Types that are packed as another one: columns of them come re-expressed where they begin within a block of 256, and
/// what is kept is unpacked as what it was packed as.
class FetchedSubBlocks : public FetchedShare {};

TEST_P(FetchedSubBlocks, HaveThePackedBytesOfTheWholeFileWhateverWasHereBefore) {
  const ModelConfig config = even_config();
  const Checkpoint checkpoint = checkpoint_of(config);
  for (const auto& [before, after] :
       std::vector<std::pair<SliceRange, SliceRange>>{{{0, 16}, {0, 20}}, {{12, 20}, {8, 28}}, {{8, 24}, {12, 16}}}) {
    SCOPED_TRACE(fmt::format("slices {} to {}", after.first, after.last));
    StageParts parts, fresh, local;
    receive(checkpoint, before, parts);
    receive(checkpoint, after, parts);
    const Received alone = receive(checkpoint, after, fresh);
    expect_same_parts(config, after, parts, fresh);
    expect_near(alone.held, alone.planned, 0.02);
    const StageAssignment share{.last_layer = config.layers, .embedding = true, .head = true, .slices = after};
    ThreadTeam team(1);
    const auto file = [&]() -> Result<std::shared_ptr<const WeightSource>> { return checkpoint.weights; };
    ASSERT_TRUE(local.complete(checkpoint.config, share, file, team, {}));
    expect_same_parts(config, after, fresh, local);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FetchedSubBlocks,
                         testing::ValuesIn(types({DType::kQ4_1, DType::kQ5_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                                                  DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS, DType::kMXFP4,
                                                  DType::kInt8})),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

/// Fetches one weight of slices 8 to 15 from a provider.
Result<WeightView> fetch(const WeightProvider& provider, const std::string& name, const WeightPart& part) {
  DirectWeightFetcher fetcher(provider);
  const FetchedWeights weights(even_config(), {.last_layer = 2, .slices = {8, 16}}, fetcher);
  return weights.find_part(name, part);
}

TEST(FetchedWeights, RowsAndColumnsBesideTheShareAreRefusedWithoutAskingForThem) {
  const WeightProvider none = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    ADD_FAILURE() << name;
    return NamedBytes{};
  };
  const auto rows = fetch(none, "blk.0.ffn_up.weight", {2048, 256, {512, 1200}, {0, 256}});
  ASSERT_FALSE(rows);
  EXPECT_EQ(
      rows.error().message,
      "blk.0.ffn_up.weight has rows 512 to 1024 and columns 0 to 256 here, 512 to 1200 and 0 to 256 were asked for");
  EXPECT_FALSE(fetch(none, "output.weight", {4096, 256, {0, 512}, {0, 256}})) << "no weight of this stage";
}

TEST(FetchedWeights, APartOfAnotherShapeThanAskedForIsRefused) {
  const Checkpoint checkpoint = *random_checkpoint(even_config(), {.seed = 9});
  const WeightProvider honest = provide_weights(checkpoint.weights);
  const WeightProvider lying = [&](const std::string& name, const WeightPart& part) -> Result<NamedBytes> {
    WeightPart more = part;
    if (name == "blk.0.ffn_up.weight") more.of_rows.end += 1;
    return honest(name, more);
  };
  const WeightPart up{2048, 256, {512, 1024}, {0, 256}};
  EXPECT_TRUE(fetch(honest, "blk.0.ffn_up.weight", up));
  const auto refused = fetch(lying, "blk.0.ffn_up.weight", up);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kBadData);
  EXPECT_THAT(refused.error().message, HasSubstr("came as 513 x 256, 512 x 256 were asked for"));
}

TEST(FetchedWeights, ColumnsComeRowAfterRow) {
  const Checkpoint checkpoint = *random_checkpoint(even_config(), {.seed = 9, .type = DType::kQ4_0});
  const WeightPart down{256, 2048, {0, 256}, {512, 1024}};
  const auto part = fetch(provide_weights(checkpoint.weights), "blk.1.ffn_down.weight", down);
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(part->stride, 0u);
  EXPECT_EQ(part->bytes.size(), 256 * *row_bytes(DType::kQ4_0, 512));
  const WeightView whole = *checkpoint.weights->find("blk.1.ffn_down.weight");
  const WeightView row = whole.cut({200, 201}, {512, 1024});
  EXPECT_TRUE(std::ranges::equal(part->bytes.subspan(200 * row.bytes.size(), row.bytes.size()), row.bytes));
}

}  // namespace
}  // namespace butterfly
