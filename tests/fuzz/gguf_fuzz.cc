// Any bytes as a GGUF file: refused with a message, or readable to the last byte of every weight.
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/gguf/gguf_weights.h"
#include "seeds.h"

namespace butterfly {
namespace {

ModelConfig small_config(const char* shape) {
  ModelConfig config = *named_config(shape);
  config.layers = 1;
  config.model_dim = 32;
  config.heads = 4;
  config.kv_heads = config.architecture == "gpt2" ? 4 : 2;
  config.head_dim = 8;
  config.ff_dim = 32;
  config.vocab = 8;
  config.context = 8;
  if (config.position == PositionKind::kRope) config.rope.dim = 8;
  return config;
}

Vocabulary small_vocabulary(TokenizerKind kind) {
  Vocabulary vocabulary;
  vocabulary.kind = kind;
  vocabulary.pieces = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
  vocabulary.types.assign(6, TokenType::kNormal);
  if (kind == TokenizerKind::kSentencePiece) vocabulary.scores.assign(6, -1.0f);
  if (kind == TokenizerKind::kByteBpe) vocabulary.merges = {"a b"};
  vocabulary.bos = TokenId{1};
  vocabulary.end_tokens = {TokenId{2}};
  return vocabulary;
}

}  // namespace
}  // namespace butterfly

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace butterfly;
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  for (const char* shape : {"llama-3.2-1b", "qwen2-0.5b", "gpt2-124m"}) {
    for (TokenizerKind kind : {TokenizerKind::kSentencePiece, TokenizerKind::kByteBpe}) {
      Checkpoint checkpoint = *random_checkpoint(small_config(shape), {.type = DType::kQ4_0});
      checkpoint.vocabulary = small_vocabulary(kind);
      const std::string path = fmt::format("{}/{}-{}", folder, shape, static_cast<int>(kind));
      if (!convert(checkpoint, path, {})) std::abort();
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto checkpoint = open_gguf_bytes(bytes, "input", {});
  if (!checkpoint) {
    if (checkpoint.error().message.empty()) std::abort();
    return 0;
  }
  unsigned sum = 0;
  for (const WeightInfo& info : checkpoint->weights->list()) {
    const auto view = checkpoint->weights->find(info.name);
    if (!view) std::abort();
    for (std::byte byte : view->bytes) sum += static_cast<unsigned>(byte);
  }
  static volatile unsigned sink = 0;  // keeps the reads
  sink = sink + sum;
  return 0;
}
