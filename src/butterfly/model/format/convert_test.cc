#include "butterfly/model/format/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(std::tie(a.layers, a.model_dim, a.heads, a.kv_heads, a.head_dim, a.ff_dim, a.vocab, a.context),
            std::tie(b.layers, b.model_dim, b.heads, b.kv_heads, b.head_dim, b.ff_dim, b.vocab, b.context));
  EXPECT_EQ(std::tie(a.norm, a.norm_epsilon, a.activation, a.mlp, a.position, a.weight_type),
            std::tie(b.norm, b.norm_epsilon, b.activation, b.mlp, b.position, b.weight_type));
  EXPECT_EQ(std::tie(a.qkv_bias, a.attention_output_bias, a.mlp_bias, a.norm_bias, a.tied_head),
            std::tie(b.qkv_bias, b.attention_output_bias, b.mlp_bias, b.norm_bias, b.tied_head));
  EXPECT_EQ(std::tie(a.rope.dim, a.rope.pairs, a.rope.scaling, a.rope.factor, a.rope.factors),
            std::tie(b.rope.dim, b.rope.pairs, b.rope.scaling, b.rope.factor, b.rope.factors));
  if (a.position == PositionKind::kRope) {
    EXPECT_EQ(a.rope.base, b.rope.base);
  }
}

TEST(Convert, RoundTripKeepsConfigurationVocabularyAndEveryWeight) {
  for (const char* architecture : {"llama", "qwen2", "gpt2"}) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
      SCOPED_TRACE(std::string(architecture) + " " + std::string(to_string(type)));
      const TempDir dir;
      const Checkpoint original = small_checkpoint(architecture, type);
      const auto report = convert(original, dir / "m.gguf", {});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->file_bytes, std::filesystem::file_size(dir / "m.gguf"));
      const auto read = open_checkpoint(dir / "m.gguf");
      ASSERT_TRUE(read) << read.error().message;
      expect_same_config(original.config, read->config);
      EXPECT_EQ(read->vocabulary.end_tokens, original.vocabulary.end_tokens);
      EXPECT_EQ(read->vocabulary.pieces[8], "[PAD8]");  // the model has 12 rows for 8 pieces
      if (std::string(architecture) != "gpt2") expect_same_weights(*original.weights, *read->weights);
      // gpt2's position embedding is stored as f32.
      for (const WeightInfo& info : original.weights->list()) {
        if (info.name == "position_embd.weight") continue;
        EXPECT_EQ(as_text(original.weights->find(info.name)->bytes), as_text(read->weights->find(info.name)->bytes))
            << info.name;
      }
      EXPECT_EQ(dir.entries(), 1u);
    }
  }
}

TEST(Convert, ByteBpeVocabulariesSurvive) {
  const TempDir dir;
  Checkpoint original = small_checkpoint();
  Vocabulary& vocabulary = original.vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  vocabulary.scores.clear();
  vocabulary.merges = {"a b"};
  vocabulary.add_space_prefix = false;
  vocabulary.chat_template = "{{ messages }}";
  for (PreTokenizer pre : {PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2, PreTokenizer::kCustom}) {
    vocabulary.pre_tokenizer = pre;
    vocabulary.custom_pattern = pre == PreTokenizer::kCustom ? "\\p{L}+" : "";
    if (pre == PreTokenizer::kCustom) vocabulary.further_patterns = {"x", "y"};
    vocabulary.ignore_merges = pre == PreTokenizer::kCustom;
    ASSERT_TRUE(convert(original, dir / "m.gguf", {}));
    const auto read = open_checkpoint(dir / "m.gguf");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->vocabulary.pre_tokenizer, pre);
    EXPECT_EQ(read->vocabulary.custom_pattern, vocabulary.custom_pattern);
    EXPECT_EQ(read->vocabulary.further_patterns, vocabulary.further_patterns);
    EXPECT_EQ(read->vocabulary.ignore_merges, vocabulary.ignore_merges);
    EXPECT_EQ(read->vocabulary.merges, vocabulary.merges);
    EXPECT_EQ(read->vocabulary.chat_template, vocabulary.chat_template);
    EXPECT_EQ(read->vocabulary.bos, vocabulary.bos);
  }
}

TEST(Convert, RopeScalingSurvives) {
  const TempDir dir;
  Checkpoint original = small_checkpoint();
  original.config.rope.scaling = RopeConfig::Scaling::kLinear;
  original.config.rope.factor = 4.0f;
  ASSERT_TRUE(convert(original, dir / "linear.gguf", {}));
  expect_same_config(original.config, open_checkpoint(dir / "linear.gguf")->config);
  original.config.rope.scaling = RopeConfig::Scaling::kLlama3;
  original.config.rope.original_context = 8;
  ASSERT_TRUE(convert(original, dir / "llama3.gguf", {}));
  const auto read = open_checkpoint(dir / "llama3.gguf");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->config.rope.factors, with_explicit_factors(original.config.rope).factors);
  EXPECT_EQ(read->config.rope.factors.back(), 4.0f);  // the longest wave is stretched by the whole factor
}

TEST(Convert, QuantisesAsTheOutsideQuantiserDid) {
  BF_NEEDS_DATA("models/TinyStories-656K");
  const TempDir dir;
  const auto original = open_checkpoint(data_path("models/TinyStories-656K/TinyStories-656K.gguf"));
  ASSERT_TRUE(original) << original.error().message;
  for (const char* name : {"F16", "Q8_0", "Q4_0"}) {
    const auto reference =
        open_checkpoint(data_path(fmt::format("models/TinyStories-656K/TinyStories-656K-{}.gguf", name)));
    ASSERT_TRUE(reference) << reference.error().message;
    ASSERT_TRUE(convert(*original, dir / "m.gguf", {.type = reference->config.weight_type}));
    const auto ours = open_checkpoint(dir / "m.gguf");
    ASSERT_TRUE(ours) << ours.error().message;
    int compared = 0;
    for (const WeightInfo& info : reference->weights->list()) {
      const auto a = reference->weights->find(info.name);
      const auto b = ours->weights->find(info.name);
      ASSERT_TRUE(b);
      if (a->type != b->type) continue;  // the reference keeps the embedding of its Q4_0 file in Q8_0
      EXPECT_TRUE(as_text(a->bytes) == as_text(b->bytes)) << name << " " << info.name;
      ++compared;
    }
    EXPECT_GE(compared, 19) << name;
  }
}

TEST(Convert, MatricesWithoutWholeBlocksBecomeF16AndAreNamed) {
  const TempDir dir;
  Checkpoint original = small_checkpoint();
  ModelConfig config = small_config();
  config.ff_dim = 44;
  original = *random_checkpoint(config, {.seed = 3});
  const auto report = convert(original, dir / "m.gguf", {.type = DType::kQ8_0});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->stored_as_f16, (std::vector<std::string>{"blk.0.ffn_down.weight", "blk.1.ffn_down.weight"}));
  const auto read = open_checkpoint(dir / "m.gguf");
  EXPECT_EQ(read->weights->find("blk.0.ffn_down.weight")->type, DType::kF16);
  EXPECT_EQ(read->weights->find("blk.0.ffn_up.weight")->type, DType::kQ8_0);
}

/// A source whose weight of one name has one other value.
class Poisoned final : public WeightSource {
 public:
  Poisoned(std::shared_ptr<const WeightSource> inner, float value) : inner_(std::move(inner)), value_(value) {}
  std::vector<WeightInfo> list() const override { return inner_->list(); }
  bool contains(const std::string& name) const override { return inner_->contains(name); }
  std::string description() const override { return inner_->description(); }
  Result<WeightView> find(const std::string& name) const override {
    auto view = inner_->find(name);
    if (!view || name != "blk.1.ffn_up.weight") return view;
    const auto copy = std::make_shared<std::vector<std::byte>>(view->bytes.begin(), view->bytes.end());
    std::memcpy(copy->data() + 4 * (32 + 5), &value_, 4);
    view->bytes = *copy;
    view->owner = copy;
    return view;
  }

 private:
  std::shared_ptr<const WeightSource> inner_;
  float value_;
};

TEST(Convert, ValuesThatTheTypeCannotHoldAreNamedAndNothingIsLeft) {
  for (float value : {std::nanf(""), 1e30f}) {
    const TempDir dir;
    Checkpoint checkpoint = small_checkpoint();
    checkpoint.weights = std::make_shared<Poisoned>(checkpoint.weights, value);
    const auto report = convert(checkpoint, dir / "m.gguf", {.type = DType::kQ8_0});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::kBadData);
    EXPECT_THAT(report.error().message, HasSubstr("blk.1.ffn_up.weight has"));
    EXPECT_THAT(report.error().message, HasSubstr("in row 1, column 5"));
    EXPECT_EQ(dir.entries(), 0u);
  }
}

TEST(Convert, FullDiskLeavesTheOldFileAndNothingElse) {
  const TempDir dir;
  write_file(dir / "m.gguf", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 20000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto report = convert(small_checkpoint(), dir / "m.gguf", {});
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kIo);
  EXPECT_THAT(report.error().message, HasSubstr(dir / "m.gguf"));
  EXPECT_THAT(report.error().message, HasSubstr("File too large"));
  EXPECT_EQ(read_file(dir / "m.gguf"), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(Convert, RefusesTargetsThatAreNoFiles) {
  for (const char* target : {"/dev/full", "/tmp"}) {
    const auto report = convert(small_checkpoint(), target, {});
    ASSERT_FALSE(report);
    EXPECT_THAT(report.error().message, HasSubstr("is no regular file"));
  }
  const auto nowhere = convert(small_checkpoint(), "/nonexistent/m.gguf", {});
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("No such file or directory"));
}

TEST(Convert, RefusesConfigurationsThatWouldReadBackAsOthers) {
  const TempDir dir;
  const auto message = [&](const char* architecture, auto change) {
    Checkpoint checkpoint = small_checkpoint(architecture);
    change(checkpoint.config);
    const auto report = convert(checkpoint, dir / "m.gguf", {});
    return report ? "" : report.error().message;
  };
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.rope.pairs = RopePairs::kHalves; }),
              HasSubstr("other positions"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.activation = Activation::kGeluTanh; }), HasSubstr("another MLP"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.norm_place = NormPlace::kAfter; }), HasSubstr("norms after"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.architecture = "bart"; }), HasSubstr("is \"bart\""));
  EXPECT_THAT(message("gpt2", [](ModelConfig& c) { c.mlp_bias = false; }), HasSubstr("projections without bias"));
  EXPECT_EQ(dir.entries(), 0u);
}

TEST(Convert, InterruptionLeavesNothing) {
  const TempDir dir;
  std::stop_source stop;
  int tensors = 0;
  const auto report = convert(small_checkpoint(), dir / "m.gguf",
                              {.progress =
                                   [&](const ConvertProgress&) {
                                     if (++tensors == 5) stop.request_stop();
                                   },
                               .stop = stop.get_token()});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(dir.entries(), 0u);
}

TEST(Convert, MayReplaceItsOwnInput) {
  const TempDir dir;
  ASSERT_TRUE(convert(small_checkpoint(), dir / "m.gguf", {}));
  const auto input = open_checkpoint(dir / "m.gguf");
  ASSERT_TRUE(convert(*input, dir / "m.gguf", {.type = DType::kF16}));
  const auto output = open_checkpoint(dir / "m.gguf");
  ASSERT_TRUE(output) << output.error().message;
  EXPECT_EQ(output->config.weight_type, DType::kF16);
}

}  // namespace
}  // namespace butterfly
