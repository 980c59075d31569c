#include "butterfly/stage/stage_step.h"

#include <gtest/gtest.h>

#include <cstring>

namespace butterfly {
namespace {

Step example() {
  Step step;
  step.id = 42;
  step.epoch = Epoch(7);
  step.batch.runs = {{SequenceId(3), 10, 5, 3, 4, 17}, {SequenceId(1), 0, 2, 2}};
  step.batch.kind = BatchKind::kEncode;
  step.release = {SequenceId(9), SequenceId(8)};
  step.share = {{.from = SequenceId(4), .to = SequenceId(1), .tokens = 128}};
  return step;
}

TEST(Step, SurvivesTheWire) {
  const auto decoded = decode_step(encode_step(example()), {.context = 64});
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->id, 42u);
  EXPECT_EQ(decoded->epoch, Epoch(7));
  ASSERT_EQ(decoded->batch.runs.size(), 2u);
  EXPECT_EQ(decoded->batch.runs[0].position, 10);
  EXPECT_EQ(decoded->batch.runs[0].logits_from, 3);
  EXPECT_EQ(decoded->batch.runs[0].logits_to, 4);
  EXPECT_EQ(decoded->batch.runs[0].encoder_rows, 17);
  EXPECT_EQ(decoded->batch.kind, BatchKind::kEncode);
  EXPECT_EQ(decoded->batch.logit_rows(), 1);
  EXPECT_EQ(decoded->release, (std::vector{SequenceId(9), SequenceId(8)}));
  ASSERT_EQ(decoded->share.size(), 1u);
  EXPECT_EQ(decoded->share[0].from, SequenceId(4));
  EXPECT_EQ(decoded->share[0].to, SequenceId(1));
  EXPECT_EQ(decoded->share[0].tokens, 128);
}

TEST(Step, TheTensorIsHandedOverWithoutCopying) {
  Step step = example();
  step.tensor = *Tensor::allocate(*Pool::shared(), DType::kI32, {7});
  const std::byte* data = step.tensor.bytes().data();
  const Message message = encode_step(std::move(step));
  EXPECT_EQ(message.payload.bytes.data(), data);
  EXPECT_EQ(message.payload.bytes.size(), 28u);
}

TEST(Step, EveryTruncationAndEveryFlippedByteIsRefusedOrHarmless) {
  const Message whole = encode_step(example());
  for (std::size_t size = 0; size < whole.meta.size(); ++size) {
    Message cut = whole;
    cut.meta.resize(size);
    EXPECT_FALSE(decode_step(cut, {.context = 64})) << size;
  }
  for (std::size_t at = 0; at < whole.meta.size(); ++at) {
    for (const int value : {0x00, 0x7f, 0x80, 0xff}) {
      Message bent = whole;
      bent.meta[at] = static_cast<std::byte>(value);
      const auto step = decode_step(bent, {.context = 64});
      if (!step) continue;
      for (const SequenceRun& run : step->batch.runs) {
        EXPECT_GE(run.position, 0);
        EXPECT_LE(run.position + run.rows, 64);
        EXPECT_LE(run.logits_from, run.rows);
        EXPECT_GE(run.logit_rows(), 0);
        EXPECT_LE(run.logit_rows(), run.rows);
        EXPECT_GE(run.encoder_rows, 0);
        EXPECT_LE(run.encoder_rows, 64);
      }
    }
  }
}

TEST(Step, OneSequenceCannotRunTwiceInAStep) {
  Step step = example();
  step.batch.runs[1].sequence = step.batch.runs[0].sequence;
  const auto decoded = decode_step(encode_step(std::move(step)), {.context = 64});
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().message, "a step names sequence 3 twice");
}

TEST(Step, AFailureArrivesAsItsError) {
  const Error error{ErrorCode::kNoMemory, "the cache is full", std::source_location::current()};
  const auto decoded = decode_step(encode_failure(5, Epoch(1), error), {});
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(decoded.error().message, "the cache is full");
}

}  // namespace
}  // namespace butterfly
