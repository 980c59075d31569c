#include "butterfly/plan/cost/cost.h"

#include <gtest/gtest.h>

#include <cmath>

namespace butterfly {
namespace {

ModelConfig must_named(const std::string& name) {
  Result<ModelConfig> config = named_config(name);
  EXPECT_TRUE(config.has_value()) << name;
  return config ? *config : ModelConfig{};
}

ModelCost must_cost(const ModelConfig& config, DType kv_type = DType::kF16) {
  const Result<ModelCost> cost = model_cost(config, kv_type);
  EXPECT_TRUE(cost.has_value());
  return cost ? *cost : ModelCost{};
}

/// Tables of relative positions are counted for each layer, and an encoder's last norm not at all.
std::uint64_t uncounted_elements(const ModelConfig& config) {
  if (!config.has_decoder()) return 0;
  const int table = config.relative.buckets * config.heads;
  return static_cast<std::uint64_t>((config.layers - 2) * table - config.model_dim);
}

TEST(ModelCost, PartsOfEveryKnownModelAddUpToItsParameters) {
  for (const std::string& name : named_configs()) {
    ModelConfig config = must_named(name);
    config.weight_type = DType::kF32;
    const ModelCost cost = must_cost(config);
    EXPECT_EQ(cost.block.weight_bytes, 4 * block_parameter_count(config)) << name;
    EXPECT_EQ(cost.embedding.weight_bytes + cost.head.weight_bytes - cost.tied_bytes +
                  cost.weight_bytes(cost.counts(0, config.layers)),
              4 * (parameter_count(config) + uncounted_elements(config)))
        << name;
  }
}

TEST(ModelCost, MatricesHaveTheWeightTypeAndVectorsStayF32) {
  ModelConfig config = must_named("llama-1.1b");
  config.weight_type = DType::kQ4_0;
  const ModelCost cost = must_cost(config);
  const std::uint64_t vectors = 2u * 2048;
  const std::uint64_t matrices = block_parameter_count(config) - vectors;
  EXPECT_EQ(cost.block.weight_bytes, matrices / 32 * 18 + vectors * 4);
  EXPECT_EQ(cost.block.flops, 2.0 * static_cast<double>(matrices));
}

TEST(ModelCost, CacheCountsKeysAndValuesOfTheKvHeadsInTheCachesType) {
  const ModelConfig config = must_named("llama-1.1b");  // 4 heads of 64
  EXPECT_EQ(must_cost(config, DType::kF32).kv_bytes, 2u * 4 * 64 * 4);
  EXPECT_EQ(must_cost(config, DType::kF16).kv_bytes, 2u * 4 * 64 * 2);
  EXPECT_EQ(must_cost(config, DType::kQ8_0).kv_bytes, 2u * 4 * 2 * 34);
}

/// Four times as many heads as fit into what is cached.
ModelConfig latent_config() {
  ModelConfig config = must_named("llama-1.1b");
  config.kv_heads = 1;
  config.head_dim = 192;
  config.rope.dim = 64;
  config.latent = {.dim = 512, .query_rank = 1536, .value_dim = 128};
  return config;
}

TEST(ModelCost, LatentAttentionCachesOneRowAndAddsUpToItsParameters) {
  for (const int rank : {0, 1536}) {
    ModelConfig config = latent_config();
    config.latent.query_rank = rank;
    const ModelCost cost = must_cost(config);
    EXPECT_EQ(cost.kv_bytes, (512u + 64) * 2);
    EXPECT_EQ(cost.attention_flops, 2.0 * 32 * (512 + 64 + 512));
    EXPECT_EQ(cost.share({0, 16}).kv_bytes, cost.kv_bytes) << "every member has the latent";
    EXPECT_EQ(cost.share({0, 16}).attention_flops, cost.attention_flops / 2);
    config.weight_type = DType::kF32;
    config.attention_sinks = true;
    EXPECT_EQ(must_cost(config).block.weight_bytes, 4 * block_parameter_count(config));
  }
}

TEST(ModelCost, BlocksOfACacheHaveScalesAlsoWhereTheLastIsShort) {
  ModelConfig config = must_named("llama-1.1b");
  const auto kv_heads = static_cast<std::uint64_t>(config.kv_heads);
  EXPECT_EQ(must_cost(config, DType::kQ8_0).kv_bytes, 2 * kv_heads * (64 + 2 * 2));
  config.head_dim = config.rope.dim = 48;
  EXPECT_EQ(must_cost(config, DType::kQ8_0).kv_bytes, 2 * kv_heads * (48 + 2 * 2));
  EXPECT_EQ(must_cost(config, DType::kF16).kv_bytes, 2 * kv_heads * 96);
}

TEST(ModelCost, CacheTypeThatNoCacheHasIsRefused) {
  const Result<ModelCost> cost = model_cost(must_named("llama-1.1b"), DType::kQ4_0);
  ASSERT_FALSE(cost.has_value());
  EXPECT_EQ(cost.error().code, ErrorCode::kInvalidArgument);
}

TEST(ModelCost, InconsistentModelIsRefused) {
  ModelConfig config = must_named("llama-1.1b");
  config.layers = 0;
  EXPECT_FALSE(model_cost(config, DType::kF16).has_value());
}

TEST(ModelCost, SharesOfSlicesAddUpToTheWhole) {
  for (const char* name : {"llama-1.1b", "gpt2-124m", "gpt2-xl", "qwen2-0.5b", "mixtral-8x7b"}) {
    const ModelConfig config = must_named(name);
    const ModelCost cost = must_cost(config);
    double block = 0.0, head = 0.0, attention = 0.0;
    std::uint64_t logits = 0;
    for (const SliceRange slices : {SliceRange{0, 11}, SliceRange{11, 17}, SliceRange{17, 32}}) {
      const ShareCost& own = cost.share(slices);
      block += own.block.flops;
      head += own.head.flops;
      attention += own.attention_flops;
      logits += own.logit_bytes;
      EXPECT_LT(own.block.weight_bytes, cost.block.weight_bytes) << name;
    }
    EXPECT_DOUBLE_EQ(head, cost.head.flops) << name;
    EXPECT_DOUBLE_EQ(attention, cost.attention_flops) << name;
    EXPECT_EQ(logits, cost.logit_bytes) << name;
    EXPECT_GE(block, cost.block.flops) << name;  // key-value heads on a border are computed twice
  }
}

TEST(ModelCost, ExpertsAreCountedAsPublishedAndReadAsRowsChooseThem) {
  EXPECT_EQ(parameter_count(must_named("mixtral-8x7b")), 46'702'792'704u);
  EXPECT_EQ(parameter_count(must_named("qwen3-30b-a3b")), 30'532'122'624u);
  const ExpertCost experts = must_cost(must_named("mixtral-8x7b")).block.experts;
  EXPECT_EQ(experts.held, 8.0);
  EXPECT_DOUBLE_EQ(experts.touched(1), 2.0);
  EXPECT_DOUBLE_EQ(experts.touched(2), 8 * (1 - 0.75 * 0.75));
  EXPECT_NEAR(experts.touched(100), 8.0, 1e-9);
  EXPECT_EQ(must_cost(must_named("mixtral-8x7b")).share({8, 20}).block.experts.held, 3.0);
}

TEST(ModelCost, DenseLayersBesideExpertsAreCountedAsSuch) {
  ModelConfig config = must_named("qwen3-30b-a3b");
  config.weight_type = DType::kF32;
  config.moe.layers.assign(static_cast<std::size_t>(config.layers), 1);
  config.moe.layers[0] = config.moe.layers[1] = config.moe.layers[7] = 0;
  const ModelCost cost = must_cost(config);
  EXPECT_EQ(cost.counts(0, 8), (BlockCounts{.of = {5, 3}}));
  EXPECT_EQ(cost.kind(7), (BlockKind{.dense = true}));
  EXPECT_EQ(cost.kind(8), BlockKind{});
  EXPECT_EQ(cost.dense_block.weight_bytes, 4 * block_parameter_count(config));
  EXPECT_EQ(cost.dense_block.experts.held, 0.0);
  EXPECT_EQ(cost.embedding.weight_bytes + cost.head.weight_bytes - cost.tied_bytes +
                cost.weight_bytes(cost.counts(0, config.layers)),
            4 * parameter_count(config));
}

TEST(ModelCost, ExpertsAreCountedByTheirOwnRun) {
  const ModelCost cost = must_cost(must_named("qwen3-30b-a3b"));
  const ShareCost own = cost.share({{0, 8}, {16, 32}}), coupled = cost.share({0, 8});
  EXPECT_EQ(own.block.experts.held, 64.0);
  EXPECT_EQ(own.expert_subtrees, 1);
  EXPECT_EQ(own.block.weight_bytes - coupled.block.weight_bytes,
            static_cast<std::uint64_t>(32 * own.block.experts.bytes));
  EXPECT_EQ(own.kv_bytes, coupled.kv_bytes);
  EXPECT_EQ(own.head.weight_bytes, coupled.head.weight_bytes);
  const ShareCost alone = cost.share({{5, 5}, {0, 32}});
  EXPECT_EQ(alone.kv_bytes, 0u);
  EXPECT_EQ(alone.logit_bytes, 0u);
  EXPECT_EQ(alone.block.experts.held, 128.0);
  EXPECT_EQ(cost.share({{0, 32}, {0, 0}}).block.experts.held, 0.0);
}

TEST(ModelCost, KeyValueHeadsAreCopiedWhereMembersOutnumberThem) {
  const ModelCost cost = must_cost(must_named("llama-1.1b"));  // 32 heads, 4 of keys and values, a head in a slice
  const std::uint64_t one = cost.kv_bytes / 4;
  EXPECT_EQ(cost.share({0, 8}).kv_bytes, one);
  EXPECT_EQ(cost.share({9, 10}).kv_bytes, one);
  EXPECT_EQ(cost.share({7, 9}).kv_bytes, 2 * one);
  EXPECT_EQ(cost.share({0, 32}).kv_bytes, cost.kv_bytes);
}

TEST(Share, RunsOfSlicesConsistOfMaximalSubtrees) {
  EXPECT_EQ(subtree_count({0, 8}), 1);
  EXPECT_EQ(subtree_count({0, 32}), 1);
  EXPECT_EQ(subtree_count({1, 31}), 8);
  EXPECT_EQ(subtree_count({0, 4}), 1);
  EXPECT_EQ(subtree_count({4, 8}), 1);
  EXPECT_EQ(subtree_count({0, 3}), 2);
  EXPECT_EQ(subtree_count({3, 8}), 2);
  EXPECT_EQ(subtree_count({1, 7}), 4);
  EXPECT_EQ(subtree_count({2, 6}), 2);
  EXPECT_EQ(subtree_count({5, 6}), 1);
}

ModelConfig encoder_decoder() {
  ModelConfig config = must_named("butterfly-demo");
  config.layers = 10;
  config.encoder_layers = 6;
  config.position = PositionKind::kNone;
  config.relative = {.buckets = 32, .distance = 128, .shared = true};
  config.attention_scale = 1.0f;
  config.rope = {};
  return config;
}

// Fails where layers that share weights are counted as if each had its own.
TEST(ModelCost, LayersThatShareWeightsStoreThemOnceOnANode) {
  ModelConfig config = must_named("butterfly-demo");
  config.layers = 12;
  config.layer_groups = 2;
  const ModelCost cost = must_cost(config);
  const std::uint64_t one = cost.block.weight_bytes;
  const Load load{.context = 16};
  const auto weights = [&](int first, int last) {
    return share_bytes(cost, {.first_layer = first, .last_layer = last}, load).weights;
  };
  EXPECT_EQ(weights(0, 12), 2 * one);
  EXPECT_EQ(weights(0, 6), one);
  EXPECT_EQ(weights(2, 4), one) << "a run that begins amid them";
  EXPECT_EQ(weights(5, 7), 2 * one);
  EXPECT_EQ(share_bytes(cost, {.first_layer = 0, .last_layer = 12}, load).kv, 12 * cost.kv_bytes * 16);
  EXPECT_EQ(
      cost.weight_bytes(cost.counts(0, 12)) + cost.embedding.weight_bytes + cost.head.weight_bytes - cost.tied_bytes,
      4 * parameter_count(config));
}

// Fails where an encoder's layers are counted as the decoder's.
TEST(ModelCost, LayersOfAnEncoderHaveNeitherMatricesNorCacheForAnotherText) {
  ModelConfig config = encoder_decoder();
  const ModelCost cost = must_cost(config);
  EXPECT_EQ(cost.counts(4, 9).total(), 5);
  const std::uint64_t encoder = cost.block.weight_bytes;
  const std::uint64_t decoder = encoder + cost.encoded_query.weight_bytes + cost.encoded_keys.weight_bytes;
  EXPECT_EQ(cost.weight_bytes(cost.counts(4, 9)), 2 * encoder + 3 * decoder);
  EXPECT_EQ(
      cost.weight_bytes(cost.counts(0, 10)) + cost.embedding.weight_bytes + cost.head.weight_bytes - cost.tied_bytes,
      4 * (parameter_count(config) + uncounted_elements(config)));
  const ShareBytes bytes = share_bytes(cost, {.first_layer = 4, .last_layer = 9}, {.context = 100, .sequences = 2});
  EXPECT_EQ(bytes.kv, (2 + 2 * 3) * cost.kv_bytes * 200);
}

TEST(ModelCost, ManyWindowsCountAsAFewWiderOnes) {
  ModelConfig config = must_named("butterfly-demo");
  config.layers = 40;
  for (int layer = 0; layer < config.layers; ++layer) config.windows.push_back(layer % 10 == 9 ? 0 : 16 + layer);
  const ModelCost cost = must_cost(config);
  EXPECT_EQ(cost.kinds.size(), kBlockKindsMax);
  for (int layer = 0; layer < config.layers; ++layer) {
    const int counted = cost.kind(layer).window, own = config.window_of(layer);
    EXPECT_TRUE(counted == 0 || counted >= own) << layer;
    EXPECT_TRUE(own != 0 || counted == 0) << layer;
  }
  EXPECT_EQ(cost.counts(0, 40).total(), 40);
}

class StepTime : public testing::Test {
 protected:
  NodeRates rates() const { return node_rates(node_, cost_.weight_type); }
  /// What the module's page says of matmuls: rows beyond the first four find the weights in a cache.
  static double matmul_s(const PartCost& part, double rows, double bytes_per_s, double flops_per_s) {
    const double first = std::min(rows, 4.0) * part.flops / flops_per_s;
    return std::hypot(static_cast<double>(part.weight_bytes) / bytes_per_s, first) +
           std::max(rows - 4.0, 0.0) * part.flops / flops_per_s;
  }
  double moved_s(double rows) const { return rows * cost_.block.moved_bytes / rates().memory_bytes_per_s; }

  ModelCost cost_ = must_cost(must_named("llama-1.1b"));
  NodeDescriptor node_{.memory_read_gb_per_s = 10.0, .fp32_gflops = 1e9};
  const StepShape one_{};
};

TEST_F(StepTime, OneSequenceIsBoundByReadingWeights) {
  const double seconds = block_s(cost_, one_, rates());
  EXPECT_DOUBLE_EQ(seconds, (static_cast<double>(cost_.block.weight_bytes) + cost_.block.moved_bytes) /
                                (kAssumedMemoryShare * 10e9));
  node_.memory_read_gb_per_s = 20.0;
  EXPECT_DOUBLE_EQ(block_s(cost_, one_, rates()), seconds / 2);
}

TEST_F(StepTime, OneRowReadsTheExpertsThatItUsesAndManyReadAll) {
  cost_ = must_cost(must_named("qwen3-30b-a3b"));
  const PartCost& block = cost_.block;
  const double per_s = kAssumedMemoryShare * 10e9;
  const double dense = static_cast<double>(block.weight_bytes) - 128 * block.experts.bytes;
  EXPECT_NEAR(block_s(cost_, one_, rates()) / ((dense + 8 * block.experts.bytes + block.moved_bytes) / per_s), 1.0,
              1e-9);
  const double many = block_s(cost_, {.rows = 4096}, rates()) - 4096 * block.moved_bytes / per_s;
  EXPECT_NEAR(many / (static_cast<double>(block.weight_bytes) / per_s), 1.0, 1e-5);
}

TEST_F(StepTime, ManySequencesReadWeightsOnceAndTheirOwnCaches) {
  const double one = block_s(cost_, decode_shape({.context = 100, .sequences = 1}), rates());
  const double four = block_s(cost_, decode_shape({.context = 100, .sequences = 4}), rates());
  EXPECT_NEAR(four - one,
              3 * (50.0 * static_cast<double>(cost_.kv_bytes) + cost_.block.moved_bytes) / (kAssumedMemoryShare * 10e9),
              1e-12);
}

TEST_F(StepTime, SlowArithmeticBoundsInsteadOfMemory) {
  node_.fp32_gflops = 1.0;
  EXPECT_DOUBLE_EQ(block_s(cost_, {.rows = 8, .sequences = 8}, rates()),
                   matmul_s(cost_.block, 8, kAssumedMemoryShare * 10e9, kAssumedArithmeticShare * 1e9) + moved_s(8));
}

// Fails where a step of a few rows is predicted as the larger of reading and computing all of them: the first rows are
// computed while the weights arrive, the others afterwards.
TEST_F(StepTime, RowsBeyondThoseComputedWhileReadingAddUp) {
  const double read = static_cast<double>(cost_.block.weight_bytes) / 9e9;
  const double row = read / 8;  // four rows take half of the time that the weights need
  node_.matmuls = {{.type = "f32", .decode_gb_per_s = 9.0, .prefill_gflops = cost_.block.flops / row * 1e-9}};
  const double first = std::hypot(read, 4 * row);
  EXPECT_NEAR(block_s(cost_, {.rows = 4}, rates()), first + moved_s(4), 1e-12);
  EXPECT_NEAR(block_s(cost_, {.rows = 8}, rates()), first + 4 * row + moved_s(8), 1e-12);
  EXPECT_NEAR(block_s(cost_, {.rows = 64}, rates()), first + 60 * row + moved_s(64), 1e-12);
}

TEST_F(StepTime, AttentionHasRatesOfItsOwn) {
  const StepShape shape{.rows = 2, .past = 1000};
  node_.matmuls = {{.type = "attention", .decode_gb_per_s = 1e9, .prefill_gflops = 3.0}};
  EXPECT_NEAR(block_s(cost_, shape, rates()) - block_s(cost_, {.rows = 2}, rates()),
              2 * 1000 * cost_.attention_flops / 3e9, 1e-12);
  node_.matmuls = {{.type = "attention", .decode_gb_per_s = 3.0, .prefill_gflops = 1e9}};
  EXPECT_NEAR(block_s(cost_, shape, rates()) - block_s(cost_, {.rows = 2}, rates()),
              1000 * static_cast<double>(cost_.kv_bytes) / 3e9, 1e-12);
}

// Fails where a layer with a window is charged for all that went before.
TEST_F(StepTime, AWindowBoundsWhatALayerReads) {
  node_.matmuls = {{.type = "attention", .decode_gb_per_s = 3.0, .prefill_gflops = 1e9}};
  const auto attention = [&](const StepShape& step, int window) {
    const StepShape blind{.rows = step.rows, .past = 0.0};
    return block_s(cost_, step, rates(), {.window = window}) - block_s(cost_, blind, rates());
  };
  const double position = static_cast<double>(cost_.kv_bytes) / 3e9;
  EXPECT_NEAR(attention({.past = 1000}, 0), 1000 * position, 1e-12);
  EXPECT_NEAR(attention({.past = 1000}, 128), 128 * position, 1e-12);
  EXPECT_NEAR(attention({.past = 100}, 128), 100 * position, 1e-12);
  EXPECT_NEAR(attention({.rows = 4, .past = 1000, .sequences = 4}, 128), 4 * 128 * position, 1e-12);
}

TEST_F(StepTime, RowsOfAChunkSeeTheirWindowsNotTheChunk) {
  node_.matmuls = {{.type = "attention", .decode_gb_per_s = 1e9, .prefill_gflops = 3.0}};
  const auto attention = [&](const StepShape& step, const BlockKind& kind) {
    return block_s(cost_, step, rates(), kind) - block_s(cost_, {.rows = step.rows}, rates());
  };
  const double pair = cost_.attention_flops / 3e9;
  const StepShape first = prefill_shape({.prompt = 512}, 0);
  EXPECT_NEAR(attention(first, {}), 512 * 256 * pair, 1e-9);
  // The first 128 rows see 64 at the mean, the other 384 all of the window.
  EXPECT_NEAR(attention(first, {.window = 128}), (128 * 64 + 384 * 128) * pair, 1e-9);
  const StepShape text = prefill_shape({.prompt = 512, .requests = RequestKind::kEncoded}, 0);
  EXPECT_NEAR(attention(text, {.role = LayerRole::kEncodes}), 512 * 512 * pair, 1e-9);
  EXPECT_NEAR(attention(text, {.role = LayerRole::kEncodes, .window = 64}), 512 * 2 * (32 - 1.0) * pair, 1e-9);
}

// Fails where an encoder is charged for each token that is written, or a decoder not for the text that it attends to.
TEST_F(StepTime, AnEncoderWorksOnceAndADecoderAttendsToWhatItGave) {
  cost_ = must_cost(encoder_decoder());
  const Load load{.context = 400, .sequences = 2, .prompt = 300, .chunk = 300, .requests = RequestKind::kAnswered};
  const BlockKind encoder{.role = LayerRole::kEncodes}, decoder{.role = LayerRole::kAttendsToEncoded};
  const StepShape token = token_shape(load), encoding = prefill_shape(load, 0);
  EXPECT_EQ(block_s(cost_, token, rates(), encoder), 0.0);
  EXPECT_EQ(encoding.rows, 300.0);
  EXPECT_DOUBLE_EQ(block_s(cost_, encoding, rates(), encoder),
                   matmul_s(cost_.block, 300, kAssumedMemoryShare * 10e9, kAssumedArithmeticShare * 1e18) +
                       moved_s(300) + 300 * static_cast<double>(cost_.kv_bytes) / rates().kv_bytes_per_s);
  const double alone = block_s(cost_, {.past = 200}, rates());
  const double query = static_cast<double>(cost_.encoded_query.weight_bytes) + cost_.encoded_query.moved_bytes;
  EXPECT_NEAR(block_s(cost_, token, rates(), decoder),
              alone + (query + 300 * static_cast<double>(cost_.kv_bytes)) / (kAssumedMemoryShare * 10e9), 1e-12);
  EXPECT_LT(block_s(cost_, encoding, rates(), decoder), 0.5 * block_s(cost_, encoding, rates(), encoder))
      << "keys and values alone";
  // Balance is judged by a token with its part of the encoding.
  const StepShape two = decode_shape(load);
  StepShape both = encoding;
  both.rows = 600;
  both.sequences = 2;
  EXPECT_DOUBLE_EQ(block_s(cost_, two, rates(), encoder), block_s(cost_, both, rates(), encoder) / 300);
}

// Fails where a cache of q8_0 goes at the rate in bytes that was measured with halves.
TEST_F(StepTime, AttentionGoesAtTheRateOfTheCachesType) {
  const auto rate = [&](DType type) { return node_rates(node_, DType::kF32, kUncachedWeights, type).kv_bytes_per_s; };
  node_.matmuls = {{"attention", 8, 40}};
  EXPECT_DOUBLE_EQ(rate(DType::kF16), 8e9);
  EXPECT_DOUBLE_EQ(rate(DType::kQ8_0), 8e9 * 34 / 64) << "as many positions per second as of halves";
  EXPECT_DOUBLE_EQ(rate(DType::kF32), 16e9);
  for (const bool last : {false, true}) {
    node_.matmuls = {{"attention", 8, 40}};
    node_.matmuls.insert(last ? node_.matmuls.end() : node_.matmuls.begin(), MatmulRate{"attention_q8_0", 5, 30});
    EXPECT_DOUBLE_EQ(rate(DType::kQ8_0), 5e9);
    EXPECT_DOUBLE_EQ(rate(DType::kF16), 8e9);
    EXPECT_DOUBLE_EQ(node_rates(node_, DType::kF32, 1, DType::kQ8_0).attention_flops_per_s, 30e9);
  }
}

TEST_F(StepTime, QuantisedWeightsUseInt8ArithmeticWhereThereIsAny) {
  cost_.weight_type = DType::kQ8_0;
  node_.fp32_gflops = 1.0;
  node_.int8_gops = 2.0;
  EXPECT_DOUBLE_EQ(head_s(cost_, one_, rates()),
                   matmul_s(cost_.head, 1, kAssumedMemoryShare * 10e9, kAssumedArithmeticShare * 2e9));
  node_.int8_gops = 0.0;
  EXPECT_DOUBLE_EQ(head_s(cost_, one_, rates()),
                   matmul_s(cost_.head, 1, kAssumedMemoryShare * 10e9, kAssumedArithmeticShare * 1e9));
}

TEST_F(StepTime, MeasuredMatmulsOfTheTypeReplaceTheRoofline) {
  node_.matmuls = {{.type = "q8_0", .decode_gb_per_s = 1.0, .prefill_gflops = 1.0},
                   {.type = "f32", .decode_gb_per_s = 9.0, .prefill_gflops = 50.0}};
  ASSERT_EQ(cost_.weight_type, DType::kF32);
  EXPECT_TRUE(rates().measured);
  EXPECT_DOUBLE_EQ(block_s(cost_, one_, rates()), matmul_s(cost_.block, 1, 9e9, 50e9) + moved_s(1));
  EXPECT_DOUBLE_EQ(block_s(cost_, {.rows = 256}, rates()), matmul_s(cost_.block, 256, 9e9, 50e9) + moved_s(256));
  node_.matmuls.pop_back();
  EXPECT_FALSE(rates().measured);
}

TEST_F(StepTime, NodeNeverMeasuredTakesForever) {
  node_ = {};
  EXPECT_FALSE(rates().known());
  EXPECT_TRUE(std::isinf(block_s(cost_, one_, rates())));
}

TEST_F(StepTime, EmbeddingIsNothingBesideABlock) {
  EXPECT_GT(embedding_s(one_, rates()), 0.0);
  EXPECT_LT(embedding_s(one_, rates()), 1e-3 * block_s(cost_, one_, rates()));
}

TEST(StepShape, ChunksOfAPromptCoverItAndTheLastGivesLogits) {
  const Load load{.context = 2048, .prompt = 1100, .chunk = 512};
  EXPECT_EQ(prefill_shape(load, 0).rows, 512.0);
  EXPECT_EQ(prefill_shape(load, 0).logit_rows, 0.0);
  EXPECT_EQ(prefill_shape(load, 512).past, 512.0 + 256.0);
  EXPECT_EQ(prefill_shape(load, 1024).rows, 76.0);
  EXPECT_EQ(prefill_shape(load, 1024).logit_rows, 1.0);
}

TEST(ModelCost, TypesThatArePackedAsAnotherCountItsBytesAndGoAtItsSpeed) {
  ModelConfig config = must_named("llama-2-13b");
  const auto bytes_of = [&](DType type) {
    config.weight_type = type;
    return static_cast<double>(model_cost(config, DType::kF16)->block.weight_bytes);
  };
  const double q4_0 = bytes_of(DType::kQ4_0);
  EXPECT_NEAR(bytes_of(DType::kQ4_K) / q4_0, 4.625 / 4.5, 0.01);
  EXPECT_NEAR(bytes_of(DType::kQ6_K) / q4_0, 6.625 / 4.5, 0.01);
  EXPECT_EQ(bytes_of(DType::kQ5_0), bytes_of(DType::kQ8_0));
  const NodeDescriptor node{.matmuls = {{"q8_0", 13, 83}, {"q4_0", 14, 84}}};
  EXPECT_EQ(node_rates(node, DType::kQ4_K).flops_per_s, 84e9);
  EXPECT_EQ(node_rates(node, DType::kQ6_K).weight_bytes_per_s, 13e9);
  EXPECT_FALSE(node_rates(node, DType::kQ4_K).measured);
  EXPECT_TRUE(node_rates(node, DType::kQ5_0).measured) << "packed as q8_0";
  const NodeDescriptor described{.matmuls = {{"q4_0", 14, 84}, {"q4_k", 9, 40}}};
  EXPECT_EQ(node_rates(described, DType::kQ4_K).flops_per_s, 40e9);
}

TEST(ModelCost, AModelThatCachesHoldIsReadAtTheirRate) {
  const NodeDescriptor node{.matmuls = {{"q8_0", 10, 80, 40}}};
  const auto rate = [&](double bytes) { return node_rates(node, DType::kQ8_0, bytes).weight_bytes_per_s; };
  EXPECT_DOUBLE_EQ(rate(kCachedWeights / 2), 40e9);
  EXPECT_DOUBLE_EQ(rate(kCachedWeights), 40e9);
  EXPECT_NEAR(rate(std::sqrt(kCachedWeights * kUncachedWeights)), 20e9, 1.0);
  EXPECT_DOUBLE_EQ(rate(kUncachedWeights), 10e9);
  EXPECT_DOUBLE_EQ(rate(100 * kUncachedWeights), 10e9);
  EXPECT_DOUBLE_EQ(node_rates(node, DType::kQ8_0).weight_bytes_per_s, 10e9) << "of a model of unknown size";
  for (const double cached : {0.0, 5.0}) {
    const NodeDescriptor slow{.matmuls = {{"q8_0", 10, 80, cached}}};
    EXPECT_DOUBLE_EQ(node_rates(slow, DType::kQ8_0, kCachedWeights).weight_bytes_per_s, 10e9)
        << "unknown, or another's work";
  }
}

}  // namespace
}  // namespace butterfly
