#include "butterfly/model/format/open_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

TEST(Checkpoint, OpensTheModelsThatOthersMade) {
  BF_NEEDS_DATA("models");
  struct Case {
    const char* path;
    int layers, vocab;
    DType type;
    bool tied;
  };
  for (const Case& c : {Case{"stories260K/stories260K.gguf", 5, 512, DType::kF32, false},
                        Case{"TinyStories-656K/TinyStories-656K.gguf", 2, 2048, DType::kF32, true},
                        Case{"TinyStories-656K/TinyStories-656K-F16.gguf", 2, 2048, DType::kF16, true},
                        Case{"TinyStories-656K/TinyStories-656K-Q8_0.gguf", 2, 2048, DType::kQ8_0, true},
                        Case{"TinyStories-656K/TinyStories-656K-Q4_0.gguf", 2, 2048, DType::kQ4_0, true},
                        Case{"TinyStories-656K/TinyStories-656K-Q4_1.gguf", 2, 2048, DType::kQ4_1, true},
                        Case{"TinyStories-656K/TinyStories-656K-Q5_0.gguf", 2, 2048, DType::kQ5_0, true},
                        Case{"TinyStories-656K/TinyStories-656K-Q5_1.gguf", 2, 2048, DType::kQ5_1, true},
                        Case{"TinyStories-656K", 2, 2048, DType::kF32, true}}) {
    const auto opened = open_checkpoint(data_path(std::string("models/") + c.path));
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->config.layers, c.layers);
    EXPECT_EQ(opened->config.vocab, c.vocab);
    EXPECT_EQ(opened->config.weight_type, c.type);
    EXPECT_EQ(opened->config.tied_head, c.tied);
    EXPECT_TRUE(opened->vocabulary.add_bos);
  }
}

TEST(Checkpoint, ATokenizerMayHaveMoreTokensThanTheModel) {
  BF_NEEDS_DATA("models");
  const auto opened = open_checkpoint(data_path("models/tiny-random-gpt2"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->vocabulary.size(), 50295);
  EXPECT_EQ(opened->config.vocab, 1000);
  EXPECT_TRUE(opened->config.tied_head);
}

TEST(Checkpoint, VocabularyFilesOpenOnlyWhenNoWeightsAreRequired) {
  BF_NEEDS_DATA("tokenizers/ggml-vocab-llama-spm.gguf");
  const std::string path = data_path("tokenizers/ggml-vocab-llama-spm.gguf");
  EXPECT_THAT(open_checkpoint(path).error().message, HasSubstr("has no weights"));
  const auto opened = open_checkpoint(path, {.weights_required = false});
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->vocabulary.size(), 32000);
}

TEST(Checkpoint, PathsThatAreNoModelsAreNamed) {
  const TempDir dir;
  EXPECT_EQ(open_checkpoint(dir / "absent").error().code, ErrorCode::kNotFound);
  write_file(dir / "empty", "");
  EXPECT_THAT(open_checkpoint(dir / "empty").error().message, HasSubstr("empty: is empty"));
  EXPECT_THAT(open_checkpoint("/dev/null").error().message, HasSubstr("is no regular file"));
  write_file(dir / "text", "not a model at all");
  EXPECT_THAT(open_checkpoint(dir / "text").error().message, HasSubstr("is no GGUF file"));
}

TEST(Checkpoint, ContentHashIsSha256OfAFileAndSeesEveryFileOfADirectory) {
  const TempDir dir;
  write_file(dir / "abc", "abc");
  // FIPS 180-2, appendix B.1.
  EXPECT_EQ(content_hash(dir / "abc").value(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(content_bytes(dir / "abc").value(), 3u);
  const TempDir model;
  EXPECT_EQ(content_hash(model.path()).error().code, ErrorCode::kNotFound);
  write_file(model / "config.json", "{}");
  write_file(model / "b.safetensors", "b");
  const std::string first = content_hash(model.path()).value();
  write_file(model / "README.md", "not content");
  EXPECT_EQ(content_hash(model.path()).value(), first);
  // The same bytes one after the other, cut elsewhere.
  write_file(model / "b.safetensors", "b{");
  write_file(model / "config.json", "}");
  EXPECT_NE(content_hash(model.path()).value(), first);
  EXPECT_EQ(content_bytes(model.path()).value(), 3u);
}

TEST(Checkpoint, ReleasedPagesReadTheSameAgain) {
  const TempDir dir;
  ModelConfig config = small_config();
  config.vocab = 4096;
  ASSERT_TRUE(convert(*random_checkpoint(config, {.seed = 4}), dir / "m.gguf", {}));
  const auto opened = open_checkpoint(dir / "m.gguf");
  const WeightView view = *opened->weights->find("token_embd.weight");
  const std::string before(as_text(view.bytes));
  opened->weights->release(view);
  EXPECT_EQ(before, as_text(view.bytes));
  const std::string elsewhere(100000, 'x');
  (*MappedFile::open(dir / "m.gguf"))->drop(as_bytes(elsewhere));
  EXPECT_EQ(elsewhere.find_first_not_of('x'), std::string::npos);
}

/// A GGUF file with the metadata of a small vocabulary, changed by `change`.
template <typename Change>
Result<Checkpoint> open_small_vocabulary(const Change& change) {
  const TempDir dir;
  auto writer = GgufWriter::create(dir / "v.gguf");
  writer->add_string("general.architecture", "llama");
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length"}) {
    writer->add_integer(std::string("llama.") + key, 8);
  }
  writer->add_integer("llama.attention.head_count", 4);
  writer->add_integer("llama.vocab_size", 4);
  writer->add_float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  change(*writer);
  EXPECT_TRUE(writer->write_header() && writer->finish());
  return open_checkpoint(dir / "v.gguf", {.weights_required = false});
}

const std::vector<std::string> kPieces{"<unk>", "<s>", "</s>", "a"};

TEST(VocabularyGguf, ContradictionsAreNamed) {
  const auto message = [](auto change) {
    const auto opened = open_small_vocabulary(change);
    return opened ? "" : opened.error().message;
  };
  const auto start = [](GgufWriter& w, const char* model) {
    w.add_string("tokenizer.ggml.model", model);
    w.add_strings("tokenizer.ggml.tokens", kPieces);
  };
  EXPECT_THAT(message([&](GgufWriter& w) { w.add_string("tokenizer.ggml.model", "llama"); }),
              HasSubstr("no tokenizer.ggml.tokens"));
  EXPECT_THAT(message([&](GgufWriter& w) { w.add_integer("tokenizer.ggml.model", 1); }),
              HasSubstr("tokenizer.ggml.model is an integer, expected a string"));
  EXPECT_THAT(message([&](GgufWriter& w) { start(w, "plamo2"); }), HasSubstr("the tokenizer is \"plamo2\""));
  EXPECT_THAT(message([&](GgufWriter& w) { start(w, "llama"); }), HasSubstr("has 0 token scores for 4 tokens"));
  EXPECT_THAT(message([&](GgufWriter& w) {
                start(w, "gpt2");
                w.add_string("tokenizer.ggml.pre", "sentences");
              }),
              HasSubstr("the pre-tokenizer \"sentences\" is not known"));
  EXPECT_THAT(message([&](GgufWriter& w) {
                start(w, "gpt2");
                w.add_integers("tokenizer.ggml.token_type", {1, 1});
              }),
              HasSubstr("has 2 token types for 4 tokens"));
  EXPECT_THAT(message([&](GgufWriter& w) {
                start(w, "gpt2");
                w.add_integers("tokenizer.ggml.token_type", {1, 1, 1, 9});
              }),
              HasSubstr("token 3 has the type 9"));
  EXPECT_THAT(message([&](GgufWriter& w) {
                start(w, "gpt2");
                w.add_integer("tokenizer.ggml.bos_token_id", 4);
              }),
              HasSubstr("tokenizer.ggml.bos_token_id is 4, the vocabulary has 4 tokens"));
  EXPECT_EQ(message([&](GgufWriter& w) {
              w.add_string("tokenizer.ggml.model", "gpt2");
              w.add_strings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e"});
            }),
            "")
      << "a tokenizer may have more tokens than the model";
}

TEST(VocabularyGguf, DefaultsAreThoseOfFilesThatSayNothing) {
  const auto sentencepiece = open_small_vocabulary([](GgufWriter& w) {
    w.add_string("tokenizer.ggml.model", "llama");
    w.add_strings("tokenizer.ggml.tokens", kPieces);
    w.add_floats("tokenizer.ggml.scores", {0, 0, 0, -1});
    w.add_integer("tokenizer.ggml.bos_token_id", 1);
    w.add_integer("tokenizer.ggml.unknown_token_id", 0xFFFFFFFF);
  });
  ASSERT_TRUE(sentencepiece) << sentencepiece.error().message;
  EXPECT_TRUE(sentencepiece->vocabulary.add_bos);
  EXPECT_TRUE(sentencepiece->vocabulary.add_space_prefix);
  EXPECT_EQ(sentencepiece->vocabulary.unknown, TokenId{-1});
  EXPECT_EQ(sentencepiece->vocabulary.eos, TokenId{-1});
  EXPECT_EQ(sentencepiece->config.rope.base, 10000.0f);
  EXPECT_EQ(sentencepiece->config.rope.dim, 2);
  EXPECT_EQ(sentencepiece->config.kv_heads, 4);
  const auto byte_bpe = open_small_vocabulary([](GgufWriter& w) {
    w.add_string("tokenizer.ggml.model", "gpt2");
    w.add_string("tokenizer.ggml.pre", "llama-bpe");
    w.add_strings("tokenizer.ggml.tokens", {"a", "<|begin|>", "<|eot_id|>", "<|end|>"});
    w.add_integers("tokenizer.ggml.token_type", {1, 3, 3, 1});
    w.add_integer("tokenizer.ggml.bos_token_id", 1);
  });
  ASSERT_TRUE(byte_bpe) << byte_bpe.error().message;
  EXPECT_EQ(byte_bpe->vocabulary.pre_tokenizer, PreTokenizer::kLlama3);
  EXPECT_TRUE(byte_bpe->vocabulary.ignore_merges);
  EXPECT_TRUE(byte_bpe->vocabulary.add_bos);
  // <|end|> is an ordinary piece here.
  EXPECT_EQ(byte_bpe->vocabulary.end_tokens, std::vector<TokenId>{TokenId{2}});
}

TEST(GgufVocabulary, WordsBetweenSpacesAreSpelledInPlainCharacters) {
  const auto file = open_small_vocabulary([](GgufWriter& w) {
    w.add_string("tokenizer.ggml.model", "gpt2");
    w.add_string("tokenizer.ggml.pre", "whitespace");
    w.add_bool("tokenizer.ggml.normalizer.lowercase", true);
    w.add_strings("tokenizer.ggml.tokens", {"\u4F60", "\u597D", "\u4F60\u597D", "a"});
    w.add_strings("tokenizer.ggml.merges", {"\u4F60 \u597D"});
  });
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = Tokenizer::create(file->vocabulary).value();
  const std::vector<TokenId> ids = {TokenId{2}, TokenId{3}, TokenId{0}};
  EXPECT_EQ(tokenizer.encode("\u4F60\u597D A \u4F60").value(), ids);
  EXPECT_EQ(tokenizer.decode(ids), "\u4F60\u597Da\u4F60");
}

TEST(GgufConfig, MistypedMissingAndUnsupportedKeysAreNamed) {
  const auto message = [](auto change) {
    const auto opened = open_small_vocabulary(change);
    return opened ? "" : opened.error().message;
  };
  EXPECT_EQ(message([](GgufWriter&) {}), "");
  EXPECT_THAT(message([](GgufWriter& w) { w.add_string("llama.attention.head_count_kv", "2"); }),
              HasSubstr("llama.attention.head_count_kv is a string, expected an integer"));
  EXPECT_THAT(message([](GgufWriter& w) {
                w.add_integers("llama.attention.head_count_kv", {2, 2});
              }),
              HasSubstr("is an array of 2 elements, each an integer, expected an integer"));
  EXPECT_THAT(message([](GgufWriter& w) { w.add_integer("llama.rope.freq_base", 10000); }),
              HasSubstr("llama.rope.freq_base is an integer, expected a number with a fraction"));
  EXPECT_THAT(message([](GgufWriter& w) { w.add_integer("llama.attention.head_count_kv", 3); }),
              HasSubstr("4 heads cannot share 3"));
  EXPECT_THAT(message([](GgufWriter& w) { w.add_integer("llama.expert_count", 8); }),
              HasSubstr("lacks the metadata key llama.expert_used_count"));
  EXPECT_EQ(message([](GgufWriter& w) { w.add_integer("llama.attention.sliding_window", 512); }), "");
  EXPECT_THAT(message([](GgufWriter& w) { w.add_integer("llama.attention.sliding_window", 1 << 30); }),
              HasSubstr("one of the sliding windows is 1073741824"));
  EXPECT_THAT(message([](GgufWriter& w) { w.add_string("llama.rope.scaling.type", "dynamic"); }),
              HasSubstr("\"dynamic\""));
  EXPECT_THAT(message([](GgufWriter& w) { w.add_integer("llama.attention.key_length", 1); }),
              HasSubstr("rope rotates 1 elements of heads of 1"));
  EXPECT_THAT(message([](GgufWriter& w) { w.add_integer("llama.attention.value_length", 4); }),
              HasSubstr("keys of 2 and values of 4"));
}

TEST(Checkpoint, AMissingTensorIsNamed) {
  std::string bytes = small_gguf();
  const std::size_t at = bytes.find("blk.1.ffn_gate.weight");
  bytes.replace(at, 5, "blk.9");
  const TempDir dir;
  write_file(dir / "m.gguf", bytes);
  const auto opened = open_checkpoint(dir / "m.gguf");
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(opened.error().message, HasSubstr("lacks the weight blk.1.ffn_gate.weight"));
}

}  // namespace
}  // namespace butterfly
