#include "butterfly/model/training/trainable_transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/training/training_model_test.h"
#include "butterfly/model/training/training_reference_test.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Isa best_isa() {
  return supported_isas().back();
}

TransformerOptions small_options(Isa isa = Isa::kReference) {
  return {.micro_batch = 2, .seq = 9, .isa = isa, .router_aux_loss = 0.05};
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// Central differences of the F64 loss against the gradients of an fp32 transformer, some elements of every parameter.
void expect_gradients_of_differences(const ModelConfig& config, Isa isa, BalanceScope scope = BalanceScope::kModel) {
  TransformerOptions options = small_options(isa);
  options.router_aux_loss_over = scope;
  const auto transformer = make_transformer(config, options);
  ASSERT_TRUE(transformer);
  ParameterSet& parameters = transformer->parameters();
  Weights weights;
  for (const Parameter& parameter : parameters.list()) {
    const auto values = parameters.weight(parameter);
    weights[parameter.name] = Vector(values.begin(), values.end());
  }
  const TransformerInput input = transformer_input(config, options);
  const ReferenceLoss reference(config, weights);
  const auto exact = [&] {
    double sum = 0.0;
    for (int at = 0; at < options.micro_batch * options.seq; at += options.seq) {
      const auto first = static_cast<std::size_t>(at);
      const auto count = static_cast<std::size_t>(options.seq);
      sum += reference(std::span(input.tokens).subspan(first, count), std::span(input.targets).subspan(first, count));
    }
    return sum;
  };
  const double loss = exact();
  EXPECT_NEAR(forward_backward(*transformer), loss, 1e-5 * loss);
  const bool experts = config.moe.experts > 0;
  const double balance = experts ? reference.balance_loss(scope) : 0.0;
  EXPECT_NEAR(transformer->router_report().balance_loss, balance, 1e-5 * balance);
  const double rows = options.micro_batch * options.seq;
  const std::size_t samples = kSanitized || (isa != best_isa() && isa != Isa::kReference) ? 1 : 3;  // of a parameter
  const auto objective = [&] {
    const double sum = exact();
    return experts ? sum + rows * options.router_aux_loss * reference.balance_loss(scope) : sum;
  };
  for (const Parameter& parameter : parameters.list()) {
    const auto gradient = parameters.gradient(parameter);
    double largest = 0.0;
    for (float g : gradient) largest = std::max(largest, std::fabs(static_cast<double>(g)));
    Vector& values = weights[parameter.name];
    for (std::size_t i = 0; i < values.size(); i += std::max<std::size_t>(1, values.size() / samples)) {
      constexpr double kStep = 1e-5;
      const double before = values[i];
      values[i] = before + kStep;
      const double above = objective();
      values[i] = before - kStep;
      const double below = objective();
      values[i] = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 2e-5 * largest + 1e-6) << parameter.name << " " << i;
    }
  }
}

TEST(TransformerGradients, OfAWholeModelAreThoseOfDifferencesInDoublePrecision) {
  for (const std::string& kind : network_kinds()) {
    for (const Isa isa : supported_isas()) {
      if (kSanitized && isa != best_isa()) continue;
      SCOPED_TRACE(kind + " " + std::string(to_string(isa)));
      expect_gradients_of_differences(transformer_config(kind), isa);
    }
  }
}

TEST(TransformerGradients, OfTheLoadBalanceOfEachLayerAreThoseOfDifferences) {
  for (const char* kind : {"experts", "sigmoid_experts", "chosen_experts"}) {
    SCOPED_TRACE(kind);
    expect_gradients_of_differences(transformer_config(kind), best_isa(), BalanceScope::kLayer);
  }
}

TEST(TransformerGradients, OfABlockAreThoseOfDifferencesInDoublePrecision) {
  for (const std::string& kind : network_kinds()) {
    SCOPED_TRACE(kind);
    ModelConfig config = transformer_config(kind);
    config.layers = 1;
    for (std::vector<int>* by_layer : {&config.windows, &config.ropes, &config.moe.layers}) {
      if (!by_layer->empty()) by_layer->erase(by_layer->begin());
    }
    config.tied_head = false;
    config.rope.pairs = RopePairs::kHalves;
    if (config.rope.scaling != RopeConfig::Scaling::kNone) config.rope.scaling = RopeConfig::Scaling::kLinear;
    expect_gradients_of_differences(config, Isa::kReference);
  }
}

TEST(TransformerGradients, AreTheSameBitsForAnyNumberOfThreads) {
  for (const std::string& kind : network_kinds()) {
    for (const char* fusion : {"all", "none"}) {
      for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
        SCOPED_TRACE(kind + " " + fusion + " " + std::string(to_string(precision)));
        // 180 rows: two whole chunks of the sums over rows and a part.
        TransformerOptions options{.precision = precision,
                                   .fusion = *parse_fusion(fusion),
                                   .micro_batch = 5,
                                   .seq = 36,
                                   .isa = best_isa(),
                                   .router_aux_loss = 0.05};
        const auto one = make_transformer(transformer_config(kind), options);
        const double loss = forward_backward(*one);
        for (const int threads : {2, 3}) {
          options.threads = threads;
          const auto several = make_transformer(transformer_config(kind), options);
          EXPECT_EQ(forward_backward(*several), loss);
          EXPECT_TRUE(same_bits(several->parameters().gradients(), one->parameters().gradients())) << threads;
        }
      }
    }
  }
}

TEST(TransformerGradients, AreTheSameBitsWhateverIsComputedAgain) {
  for (const std::string& kind : network_kinds()) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      for (const char* fusion : {"all", "none"}) {
        TransformerOptions options = small_options(best_isa());
        options.precision = precision;
        options.fusion = *parse_fusion(fusion);
        const auto kept = make_transformer(transformer_config(kind), options);
        forward_backward(*kept);
        std::uint64_t bytes = kept->memory().activation_bytes;
        for (const Recompute recompute : {Recompute::kSelective, Recompute::kBlock}) {
          options.recompute = recompute;
          const auto again = make_transformer(transformer_config(kind), options);
          forward_backward(*again);
          EXPECT_TRUE(same_bits(again->parameters().gradients(), kept->parameters().gradients()))
              << kind << " " << to_string(precision) << " " << fusion << " " << to_string(recompute);
          EXPECT_LT(again->memory().activation_bytes, bytes);
          bytes = again->memory().activation_bytes;
        }
      }
    }
  }
}

TEST(TransformerGradients, AgreeWithinRoundingWhereAFusionIsOff) {
  for (const std::string& kind : network_kinds()) {
    const auto fused = make_transformer(transformer_config(kind), small_options(best_isa()));
    const double loss = forward_backward(*fused);
    for (const char* fusion : {"none", "swiglu,attention,cross_entropy", "qkv,attention,cross_entropy",
                               "qkv,swiglu,cross_entropy", "qkv,swiglu,attention"}) {
      TransformerOptions options = small_options(best_isa());
      options.fusion = *parse_fusion(fusion);
      const auto apart = make_transformer(transformer_config(kind), options);
      EXPECT_NEAR(forward_backward(*apart), loss, 1e-5 * loss);
      EXPECT_LT(relative_l2(apart->parameters().gradients(), fused->parameters().gradients()), 2e-6)
          << kind << " " << fusion;
    }
  }
}

TEST(TransformerGradients, InBfloat16AreCloseToThoseInFloat) {
  for (const std::string& kind : network_kinds()) {
    TransformerOptions options = small_options(best_isa());
    ModelConfig config = transformer_config(kind);
    // Rounding may make a token choose another expert, which is no small difference.
    config.moe.experts_used = config.moe.experts;
    config.moe.groups_used = config.moe.groups;
    const auto exact = make_transformer(config, options);
    const double loss = forward_backward(*exact);
    options.precision = Precision::kBfloat16;
    const auto rounded = make_transformer(config, options);
    EXPECT_NEAR(forward_backward(*rounded), loss, 1e-2 * loss);
    const double distance = relative_l2(rounded->parameters().gradients(), exact->parameters().gradients());
    EXPECT_LT(distance, 3e-2) << kind;
    EXPECT_GT(distance, 1e-5) << kind;
  }
}

TEST(TransformerGradients, AreAddedAndScaled) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    TransformerOptions options = small_options(best_isa());
    options.precision = precision;
    const auto transformer = make_transformer(transformer_config("gpt2"), options);
    forward_backward(*transformer);
    const auto once = copy_of(transformer->parameters().gradients());
    forward_backward(*transformer, 0.5f);
    auto expected = once;
    for (float& value : expected) value *= 1.5f;
    EXPECT_LT(relative_l2(transformer->parameters().gradients(), expected), 1e-6);
  }
}

TEST(TransformerGradients, HaveNothingOfWhatWasThereBeforeTheyWereCleared) {
  for (const std::string& kind : network_kinds()) {
    TransformerOptions options = small_options();
    options.logits_bytes_max = 1;  // the head in chunks: the first writes, the others add
    const auto transformer = make_transformer(transformer_config(kind), options);
    forward_backward(*transformer);
    const std::vector<float> once = copy_of(transformer->parameters().gradients());
    for (const Parameter& parameter : transformer->parameters().list()) {
      std::ranges::fill(transformer->parameters().gradient(parameter), std::numeric_limits<float>::quiet_NaN());
    }
    transformer->clear_gradients(transformer->parameters().gradients());
    forward_backward(*transformer);
    EXPECT_EQ(copy_of(transformer->parameters().gradients()), once) << kind;
    forward_backward(*transformer);
    EXPECT_GT(relative_l2(transformer->parameters().gradients(), once), 0.5) << kind << ": the second pass adds";
  }
}

TEST(TransformerGradients, GoWhereTheyWereToldToAndNowhereElse) {
  for (const std::string& kind : network_kinds()) {
    const auto transformer = make_transformer(transformer_config(kind), small_options());
    forward_backward(*transformer);
    const std::vector<float> once = copy_of(transformer->parameters().gradients());
    std::vector<float> elsewhere(once.size(), 0.0F);
    for (const Parameter& parameter : transformer->parameters().list()) {
      std::ranges::fill(ParameterSet::part(std::span(elsewhere), parameter), std::numeric_limits<float>::quiet_NaN());
    }
    transformer->clear_gradients(elsewhere);
    forward_backward(*transformer);
    EXPECT_EQ(elsewhere, once) << kind;
    EXPECT_EQ(copy_of(transformer->parameters().gradients()), once) << kind;
  }
}

// Fails when zeros are written again, whose pages may have no memory, or when a pass expects them to be.
TEST(TransformerGradients, WhereThereAreZerosNothingIsWrittenBeforeThePass) {
  for (const std::string& kind : network_kinds()) {
    const auto transformer = make_transformer(transformer_config(kind), small_options());
    forward_backward(*transformer);
    const std::vector<float> once = copy_of(transformer->parameters().gradients());
    std::vector<float> elsewhere(once.size(), 7.0F);
    transformer->clear_gradients(elsewhere, OldGradients::kZero);
    EXPECT_EQ(std::ranges::count(elsewhere, 7.0F), std::ssize(elsewhere)) << kind;
    std::ranges::fill(elsewhere, 0.0F);
    forward_backward(*transformer);
    EXPECT_EQ(elsewhere, once) << kind;
  }
}

TEST(TransformerGradients, AreFinalWhenTheirRangeIsReady) {
  for (const std::string& kind : network_kinds()) {
    const auto transformer = make_transformer(transformer_config(kind), small_options());
    const TransformerInput input = transformer_input(transformer->config(), transformer->options());
    ASSERT_TRUE(transformer->forward(input.tokens, input.targets));
    const std::span<float> gradients = transformer->parameters().gradients();
    std::vector<float> when_ready(gradients.size(), NAN);
    std::int64_t end = transformer->parameters().padded_size();
    int ranges = 0;
    ASSERT_TRUE(transformer->backward(1.0f, [&](ParameterRange range) {
      EXPECT_EQ(range.end, end);
      EXPECT_LT(range.begin, range.end);
      end = range.begin;
      std::copy(gradients.begin() + range.begin, gradients.begin() + range.end, when_ready.begin() + range.begin);
      ++ranges;
    }));
    EXPECT_EQ(end, 0);
    EXPECT_EQ(ranges, 2 + 2 * transformer->config().layers);
    EXPECT_TRUE(same_bits(when_ready, gradients)) << kind;
  }
}

TEST(TransformerGradients, OfATargetThatIsNotCountedAreZero) {
  const auto transformer = make_transformer(transformer_config("llama"), small_options());
  TransformerInput input = transformer_input(transformer->config(), transformer->options());
  std::ranges::fill(input.targets, TokenId{-1});
  EXPECT_EQ(*transformer->forward(input.tokens, input.targets), 0.0);
  ASSERT_TRUE(transformer->backward(1.0f, {}));
  for (float value : transformer->parameters().gradients()) ASSERT_EQ(value, 0.0f);
}

TEST(TransformerGradients, DoNotDependOnHowManyRowsOfLogitsFit) {
  for (const std::string& kind : network_kinds()) {
    TransformerOptions options{.micro_batch = 5, .seq = 36, .isa = best_isa()};
    const auto whole = make_transformer(transformer_config(kind), options);
    const double loss = forward_backward(*whole);
    options.logits_bytes_max = 1;  // 64 rows at a time, the least there is; 180 are three chunks
    const auto chunks = make_transformer(transformer_config(kind), options);
    EXPECT_LT(chunks->memory().scratch_bytes, whole->memory().scratch_bytes);
    EXPECT_NEAR(forward_backward(*chunks), loss, 1e-6 * loss);
    EXPECT_LT(relative_l2(chunks->parameters().gradients(), whole->parameters().gradients()), 1e-6) << kind;
  }
}

// Fails when anything lies where another number of rows has it.
TEST(TransformerGradients, OfFewSequencesDoNotDependOnTheRoomForMore) {
  for (const std::string& kind : network_kinds()) {
    const auto of_size = [&](int sequences) {
      return make_transformer(transformer_config(kind), {.micro_batch = sequences, .seq = 9, .isa = best_isa()});
    };
    const auto roomy = of_size(2);
    ASSERT_TRUE(roomy->make_room(5));
    for (const int sequences : {2, 5, 1, 5}) {
      const auto exact = of_size(sequences);
      const TransformerInput input = transformer_input(exact->config(), exact->options());
      std::vector<double> losses;
      for (const auto& transformer : {exact.get(), roomy.get()}) {
        std::ranges::fill(transformer->parameters().gradients(), 0.0f);
        losses.push_back(transformer->forward(input.tokens, input.targets).value());
        ASSERT_TRUE(transformer->backward(0.25f, {}));
      }
      EXPECT_EQ(losses[0], losses[1]) << kind << ", " << sequences;
      EXPECT_TRUE(std::ranges::equal(exact->parameters().gradients(), roomy->parameters().gradients()))
          << kind << ", " << sequences;
    }
  }
}

TEST(TrainableTransformer, EvaluatesTheLossOfForward) {
  const auto transformer = make_transformer(transformer_config("gpt2"), small_options());
  const TransformerInput input = transformer_input(transformer->config(), transformer->options());
  EXPECT_EQ(*transformer->evaluate(input.tokens, input.targets), *transformer->forward(input.tokens, input.targets));
}

TEST(TrainableTransformer, InBfloat16SeesNewWeightsOnceItIsTold) {
  TransformerOptions options = small_options();
  options.precision = Precision::kBfloat16;
  const auto transformer = make_transformer(transformer_config("llama"), options);
  const TransformerInput input = transformer_input(transformer->config(), transformer->options());
  const Parameter& down = **transformer->parameters().find("blk.0.ffn_down.weight");
  const double before = *transformer->evaluate(input.tokens, input.targets);
  for (float& value : transformer->parameters().weight(down)) value *= 2.0f;
  EXPECT_EQ(*transformer->evaluate(input.tokens, input.targets), before);
  transformer->weights_changed();
  EXPECT_NE(*transformer->evaluate(input.tokens, input.targets), before);
}

TEST(TrainableTransformer, CountsTheWorkOfMatmulsAndOfHalfTheSquare) {
  const auto transformer = make_transformer(transformer_config("llama"), small_options());
  // Q, K, V, output, gate, up, down of two blocks, and the head; the embedding is only looked up.
  const double matmuls = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32) + 61 * 32;
  EXPECT_EQ(transformer->forward_flops_per_token(), 2 * matmuls + 2 * 2 * 32 * 9);
  const auto tied = make_transformer(transformer_config("gpt2"), small_options());
  const double tied_matmuls = 2 * (4 * 32 * 32 + 2 * 48 * 32) + 61 * 32;
  EXPECT_EQ(tied->forward_flops_per_token(), 2 * tied_matmuls + 2 * 2 * 32 * 9);
}

TEST(TrainableTransformer, CountsTheExpertsThatATokenGoesThroughAndTheKeysOfAWindow) {
  const auto experts = make_transformer(transformer_config("experts"), small_options());
  // Of five experts two, the router and the shared expert; its gate is a vector.
  const double mlp = 2 * 3 * 20 * 32 + 5 * 32 + 3 * 24 * 32;
  const double matmuls = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + mlp) + 61 * 32;
  EXPECT_DOUBLE_EQ(experts->forward_flops_per_token(), 2 * matmuls + 2 * 2 * 32 * 9);
  ModelConfig config = transformer_config("llama");
  const double whole = forward_flops_per_token(config, 32);
  config.windows = {0, 8};
  // Of the mean 16 keys of one layer 8 - 8 * 8 / 64 are left.
  EXPECT_DOUBLE_EQ(whole - forward_flops_per_token(config, 32), 4 * 32 * (16 - 7));
}

TEST(TrainableTransformer, ReportsTheTokensOfEachExpert) {
  for (const char* kind : {"experts", "sigmoid_experts", "chosen_experts"}) {
    const auto transformer = make_transformer(transformer_config(kind), small_options());
    forward_backward(*transformer);
    const ModelConfig& config = transformer->config();
    const auto tokens = transformer->router_report().tokens;
    ASSERT_EQ(tokens.size(), static_cast<std::size_t>(config.layers * config.moe.experts));
    for (int layer = 0; layer < config.layers; ++layer) {
      std::int64_t sum = 0;
      for (int e = 0; e < config.moe.experts; ++e) {
        sum += tokens[static_cast<std::size_t>(layer * config.moe.experts + e)];
      }
      EXPECT_EQ(sum, config.has_experts(layer) ? 18 * config.moe.experts_used : 0) << kind;
    }
  }
  EXPECT_TRUE(make_transformer(transformer_config("llama"), small_options())->router_report().tokens.empty());
}

TEST(TransformerGradients, OfAnExpertWithoutTokensAreZero) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    TransformerOptions options = small_options(best_isa());
    options.precision = precision;
    const auto transformer = make_transformer(transformer_config("experts"), options);
    ParameterSet& parameters = transformer->parameters();
    // Its logit is far below all others.
    parameters.weight(**parameters.find("blk.0.ffn_gate_inp.bias"))[3] = -50.0f;
    for (const Parameter& parameter : parameters.list()) {
      std::ranges::fill(parameters.gradient(parameter), std::numeric_limits<float>::quiet_NaN());
    }
    transformer->clear_gradients(parameters.gradients());
    forward_backward(*transformer);
    EXPECT_EQ(transformer->router_report().tokens[3], 0);
    for (const char* name :
         {"blk.0.ffn_gate_exps.3.weight", "blk.0.ffn_up_exps.3.weight", "blk.0.ffn_down_exps.3.weight"}) {
      for (float value : parameters.gradient(**parameters.find(name))) ASSERT_EQ(value, 0.0f) << name;
    }
    for (float value : parameters.gradient(**parameters.find("blk.0.ffn_down_exps.1.weight"))) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(TrainableTransformer, InitializesFromSeedAndNameAlone) {
  const ModelConfig config = *named_config("tinytransformer-tiny");
  const auto make = [&](std::uint64_t seed, int threads) {
    auto transformer = TrainableTransformer::create(config, {.seq = 8, .threads = threads});
    (*transformer)->initialize(seed);
    return std::move(*transformer);
  };
  const auto transformer = make(1, 1);
  ParameterSet& parameters = transformer->parameters();
  EXPECT_EQ(parameters.hash(), make(1, 3)->parameters().hash());
  EXPECT_NE(parameters.hash(), make(2, 1)->parameters().hash());
  const auto deviation = [&](const char* name) {
    double sum = 0.0;
    const auto values = parameters.weight(**parameters.find(name));
    for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(sum / static_cast<double>(values.size()));
  };
  EXPECT_NEAR(deviation("blk.1.ffn_up.weight"), 0.02, 2e-4);
  EXPECT_NEAR(deviation("token_embd.weight"), 0.02, 2e-4);
  EXPECT_NEAR(deviation("blk.1.ffn_down.weight"), 0.02 / std::sqrt(8.0), 1e-4);
  EXPECT_EQ(deviation("blk.1.ffn_norm.weight"), 1.0);
}

TEST(TrainableTransformer, RefusesWhatItCannotTakeNamingBothValues) {
  const auto message = [](const auto& result) { return result ? std::string() : result.error().message; };
  const ModelConfig config = transformer_config("llama");
  EXPECT_THAT(message(TrainableTransformer::create(config, {.seq = 65})),
              HasSubstr("sequences of 65 tokens, the model takes 1 to 64"));
  EXPECT_THAT(message(TrainableTransformer::create(config, {.micro_batch = 0, .seq = 8})),
              HasSubstr("micro-batch of 0"));
  EXPECT_THAT(message(TrainableTransformer::create(config, {.seq = 8, .threads = 0})), HasSubstr("0 threads"));
  EXPECT_THAT(message(TrainableTransformer::create(config, {.micro_batch = 1 << 30, .seq = 64})),
              HasSubstr("at most 16777216 tokens"));
  const auto transformer = make_transformer(config, small_options());
  TransformerInput input = transformer_input(config, transformer->options());
  EXPECT_THAT(message(transformer->forward(std::span(input.tokens).first(8), input.targets)),
              HasSubstr("8 tokens, the transformer takes 1 to 2 x 9"));
  EXPECT_THAT(message(transformer->forward(std::span(input.tokens).first(9), input.targets)),
              HasSubstr("18 targets, the transformer takes 1 x 9"));
  input.tokens[3] = TokenId{61};
  EXPECT_THAT(message(transformer->forward(input.tokens, input.targets)),
              HasSubstr("tokens of 61, the vocabulary has 61"));
  input.tokens[3] = TokenId{0};
  input.targets[4] = TokenId{-2};
  EXPECT_THAT(message(transformer->evaluate(input.tokens, input.targets)), HasSubstr("targets of -2"));
}

TEST(TrainableTransformer, NamesHowMuchMemoryIsMissingBeforeItIsTouched) {
  const auto refusal = [](const ModelConfig& config, int micro_batch) {
    const auto transformer = TrainableTransformer::create(config, {.micro_batch = micro_batch, .seq = 1024});
    EXPECT_FALSE(transformer);
    if (transformer) return std::string();
    EXPECT_EQ(transformer.error().code, ErrorCode::kNoMemory);
    return transformer.error().message;
  };
  ModelConfig config = *named_config("gpt-3-175b");
  EXPECT_THAT(refusal(config, 1), AllOf(HasSubstr("weights and gradients take 1.3 TiB"), HasSubstr("are missing")));
  config.layers = 1;
  config.model_dim = config.ff_dim = 768;
  EXPECT_THAT(refusal(config, 1 << 14), AllOf(HasSubstr("activations and scratch memory take"), HasSubstr("missing")));
}

TEST(TrainableTransformer, NamesWhatHasNoBackwardPass) {
  const auto refusal = [](const auto& change) {
    ModelConfig config = transformer_config("llama");
    change(config);
    const auto transformer = TrainableTransformer::create(config, {.seq = 8});
    EXPECT_FALSE(transformer);
    if (transformer) return std::string();
    EXPECT_EQ(transformer.error().code, ErrorCode::kUnsupported);
    return transformer.error().message;
  };
  EXPECT_THAT(refusal([](ModelConfig& c) { c.norm_place = NormPlace::kAfter; }), HasSubstr("norms after the sums"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.attention_sinks = true; }), HasSubstr("attention sinks"));
  EXPECT_THAT(refusal([](ModelConfig& c) {
                c.latent = {.dim = 8, .query_rank = 0, .value_dim = 4};
                c.kv_heads = 1;
                c.rope.dim = 4;
              }),
              HasSubstr("latent attention"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.position = PositionKind::kAlibi; }), HasSubstr("ALiBi"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.norm_bias = true; }), HasSubstr("RMSNorm with a bias"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.mlp = MlpKind::kPlain; }), HasSubstr("a plain MLP with SiLU"));
  const MoeConfig moe{.experts = 4, .experts_used = 2, .ff_dim = 32};
  EXPECT_THAT(refusal([&](ModelConfig& c) {
                c.moe = moe;
                c.moe.swiglu_limit = 7.0f;
              }),
              HasSubstr("a limited SwiGLU of experts"));
  EXPECT_THAT(refusal([&](ModelConfig& c) {
                c.moe = moe;
                c.moe.expert_bias = true;
              }),
              HasSubstr("biases of experts"));
}

TEST(TransformerOptions, AreReadBackFromTheirNames) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
    EXPECT_EQ(*parse_recompute(to_string(recompute)), recompute);
  }
  EXPECT_THAT(parse_recompute("all").error().message, HasSubstr("none, selective and block"));
  EXPECT_EQ(to_string(Fusion{}), "qkv,swiglu,attention,cross_entropy,adamw");
  EXPECT_EQ(to_string(*parse_fusion("none")), "none");
  EXPECT_EQ(to_string(*parse_fusion("attention,qkv")), "qkv,attention");
  EXPECT_THAT(parse_fusion("qkv,flash").error().message, HasSubstr("\"flash\" is no fusion; there are qkv,"));
  EXPECT_FALSE(parse_fusion(""));
}

}  // namespace
}  // namespace butterfly
