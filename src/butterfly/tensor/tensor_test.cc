#include "butterfly/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

namespace butterfly {
namespace {

Tensor must_allocate(Pool& pool, DType type, const Shape& shape) {
  Result<Tensor> tensor = Tensor::allocate(pool, type, shape);
  EXPECT_TRUE(tensor.has_value());
  return tensor ? *tensor : Tensor{};
}

/// 0, 1, 2, ... in order.
Tensor counting(Pool& pool, const Shape& shape) {
  Tensor tensor = must_allocate(pool, DType::kF32, shape);
  const auto values = tensor.mutable_view().values();
  std::iota(values.begin(), values.end(), 0.0f);
  return tensor;
}

class TensorTest : public testing::Test {
 protected:
  std::shared_ptr<Pool> pool_ = Pool::create();
};

TEST_F(TensorTest, DenseStridesFollowTheShape) {
  const Tensor tensor = must_allocate(*pool_, DType::kF32, {2, 3, 5});
  const TensorView view = tensor.view();
  EXPECT_EQ(view.stride_bytes(0), 60);
  EXPECT_EQ(view.stride_bytes(1), 20);
  EXPECT_EQ(view.stride_bytes(2), 4);
  EXPECT_EQ(view.rows(), 6);
  EXPECT_EQ(view.size_bytes(), 120u);
  EXPECT_TRUE(view.is_contiguous());
}

TEST_F(TensorTest, QuantisedRowsAreWholeBlocks) {
  const Tensor tensor = must_allocate(*pool_, DType::kQ8_0, {3, 64});
  EXPECT_EQ(tensor.size_bytes(), 3u * 2 * sizeof(BlockQ8_0));
  EXPECT_EQ(tensor.row<BlockQ8_0>(1).size(), 2u);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(tensor.row<BlockQ8_0>(1).data()) - tensor.view().data(), 68);
}

TEST_F(TensorTest, SliceSharesStorageAndSeesWrites) {
  Tensor tensor = counting(*pool_, {4, 6});
  Tensor middle = tensor.slice(0, 1, 3);
  EXPECT_EQ(middle.shape(), (Shape{2, 6}));
  EXPECT_EQ(middle.row(0)[0], 6.0f);
  middle.row(1)[5] = -1.0f;
  EXPECT_EQ(tensor.row(2)[5], -1.0f);
  EXPECT_EQ(middle.owner(), tensor.owner());
}

TEST_F(TensorTest, SliceKeepsStorageAliveAfterItsTensorIsGone) {
  Tensor slice;
  {
    const Tensor tensor = counting(*pool_, {4, 6});
    slice = tensor.slice(0, 3, 4);
  }
  EXPECT_GT(pool_->statistics().allocated_bytes, 0u);
  EXPECT_EQ(slice.row(0)[5], 23.0f);
  slice = Tensor{};
  EXPECT_EQ(pool_->statistics().allocated_bytes, 0u);
}

TEST_F(TensorTest, SlicesOfEveryDimensionPickTheRightElements) {
  const Tensor tensor = counting(*pool_, {3, 4, 5});
  const TensorView view = tensor.view().slice(0, 1, 3).slice(1, 2, 4).slice(2, 1, 4);
  ASSERT_EQ(view.shape(), (Shape{2, 2, 3}));
  EXPECT_FALSE(view.is_contiguous());
  std::vector<float> seen;
  for (std::int64_t i = 0; i < view.rows(); ++i) {
    for (float value : view.row(i)) seen.push_back(value);
  }
  std::vector<float> expected;
  for (int a = 1; a < 3; ++a) {
    for (int b = 2; b < 4; ++b) {
      for (int c = 1; c < 4; ++c) expected.push_back(static_cast<float>((a * 4 + b) * 5 + c));
    }
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(TensorTest, OuterSliceAndSingleColumnOfDimensionOneStayContiguous) {
  const Tensor tensor = counting(*pool_, {3, 4, 5});
  EXPECT_TRUE(tensor.slice(0, 1, 3).is_contiguous());
  EXPECT_TRUE(tensor.slice(0, 1, 2).slice(1, 1, 3).is_contiguous());
  EXPECT_FALSE(tensor.slice(1, 0, 3).is_contiguous());
  EXPECT_FALSE(tensor.slice(2, 0, 4).is_contiguous());
  EXPECT_TRUE(tensor.slice(1, 2, 2).is_contiguous());  // nothing in it
}

TEST_F(TensorTest, QuantisedSliceOfColumnsMovesByBlocks) {
  const Tensor tensor = must_allocate(*pool_, DType::kQ4_0, {2, 96});
  const Tensor right = tensor.slice(1, 32, 96);
  EXPECT_EQ(right.view().data() - tensor.view().data(), static_cast<std::ptrdiff_t>(sizeof(BlockQ4_0)));
  EXPECT_EQ(right.row<BlockQ4_0>(1).size(), 2u);
}

TEST_F(TensorTest, ReshapeKeepsOrderAndSharesStorage) {
  Tensor tensor = counting(*pool_, {2, 3, 4});
  Tensor flat = tensor.reshape({24});
  EXPECT_EQ(flat.row(0)[23], 23.0f);
  flat.row(0)[4] = -1.0f;
  EXPECT_EQ(tensor.row(1)[0], -1.0f);
}

TEST_F(TensorTest, DeepCopyOfAStridedSliceIsDenseAndIndependent) {
  Tensor tensor = counting(*pool_, {3, 4});
  Result<Tensor> copy = deep_copy(tensor.view().slice(1, 1, 3), *pool_);
  ASSERT_TRUE(copy.has_value());
  EXPECT_TRUE(copy->is_contiguous());
  const auto values = copy->view().values();
  EXPECT_EQ(std::vector<float>(values.begin(), values.end()), (std::vector<float>{1, 2, 5, 6, 9, 10}));
  copy->row(0)[0] = 100.0f;
  EXPECT_EQ(tensor.row(0)[1], 1.0f);
}

TEST_F(TensorTest, CopyElementsWritesOnlyInsideTheSlice) {
  Tensor target = counting(*pool_, {3, 4});
  const Tensor source = counting(*pool_, {3, 2});
  copy_elements(source.view(), target.mutable_view().slice(1, 1, 3));
  const auto values = target.view().values();
  EXPECT_EQ(std::vector<float>(values.begin(), values.end()),
            (std::vector<float>{0, 0, 1, 3, 4, 2, 3, 7, 8, 4, 5, 11}));
}

TEST_F(TensorTest, MutableViewConvertsToAConstantOneOfTheSameElements) {
  Tensor tensor = counting(*pool_, {2, 2});
  const MutableTensorView mutable_view = tensor.mutable_view();
  const TensorView view = mutable_view;
  mutable_view.row(1)[1] = 9.0f;
  EXPECT_EQ(view.row(1)[1], 9.0f);
}

TEST_F(TensorTest, AdoptedMemoryIsUsedInPlaceAndReleasedWithTheLastTensor) {
  auto released = std::make_shared<bool>(false);
  auto memory = std::make_unique<std::vector<float>>(6, 2.5f);
  float* first = memory->data();
  std::shared_ptr<void> owner(memory.release(), [released](void* vector) {
    delete static_cast<std::vector<float>*>(vector);
    *released = true;
  });
  const MutableByteSpan bytes = std::as_writable_bytes(std::span(first, 6));
  Result<Tensor> adopted = Tensor::adopt(std::move(owner), bytes, DType::kF32, {2, 3});
  ASSERT_TRUE(adopted.has_value());
  EXPECT_EQ(adopted->row(0).data(), first);
  EXPECT_EQ(adopted->bytes().data(), bytes.data());
  Tensor slice = adopted->slice(0, 1, 2);
  *adopted = Tensor{};
  EXPECT_FALSE(*released);
  EXPECT_EQ(slice.row(0)[2], 2.5f);
  slice = Tensor{};
  EXPECT_TRUE(*released);
}

TEST_F(TensorTest, AdoptRefusesTooFewBytesAndMisalignedOnes) {
  alignas(64) std::byte memory[64];
  const auto short_by_one = Tensor::adopt(nullptr, MutableByteSpan(memory, 23), DType::kF32, {2, 3});
  ASSERT_FALSE(short_by_one.has_value());
  EXPECT_EQ(short_by_one.error().message, "a f32 tensor of shape [2, 3] needs 24 bytes, 23 were given");
  EXPECT_FALSE(Tensor::adopt(nullptr, MutableByteSpan(memory + 2, 24), DType::kF32, {2, 3}).has_value());
  EXPECT_TRUE(Tensor::adopt(nullptr, MutableByteSpan(memory + 2, 24), DType::kF16, {2, 3}).has_value());
  EXPECT_TRUE(Tensor::adopt(nullptr, MutableByteSpan(memory, 24), DType::kF32, {2, 3}).has_value());
}

TEST_F(TensorTest, ShapesThatNoTensorCanHaveAreErrors) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  const std::vector<std::pair<DType, Shape>> impossible = {
      {DType::kF32, {}},
      {DType::kF32, {2, -1}},
      {DType::kF32, {kHuge, kHuge}},
      {DType::kF32, {0, kHuge, kHuge}},           // empty, but its strides overflow
      {DType::kF32, {std::int64_t{1} << 61, 1}},  // elements fit, bytes do not
      {DType::kQ8_0, {4, 33}},                    // cuts a block
      {DType::kQ4_0, {4, 16}},
  };
  for (const auto& [type, shape] : impossible) {
    EXPECT_FALSE(dense_bytes(type, shape).has_value()) << to_string(shape);
    const Result<Tensor> tensor = Tensor::allocate(*pool_, type, shape);
    ASSERT_FALSE(tensor.has_value()) << to_string(shape);
    EXPECT_EQ(tensor.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(tensor.error().message.find(to_string(shape)), std::string::npos);
  }
}

TEST_F(TensorTest, EmptyTensorHasNoRowsToRead) {
  const Tensor tensor = must_allocate(*pool_, DType::kF32, {0, 8});
  EXPECT_EQ(tensor.rows(), 0);
  EXPECT_EQ(tensor.size_bytes(), 0u);
  EXPECT_TRUE(tensor.view().values().empty());
}

TEST(TensorDeathTest, MisuseEndsTheProcessWithItsReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pool = Pool::create();
  Tensor tensor = counting(*pool, {4, 8});
  EXPECT_DEATH(tensor.row(4), "no such row");
  EXPECT_DEATH(tensor.row(-1), "no such row");
  EXPECT_DEATH(tensor.row<std::int32_t>(0), "another type");
  EXPECT_DEATH(tensor.slice(0, 2, 5), "outside of its dimension");
  EXPECT_DEATH(tensor.slice(2, 0, 1), "no such dimension");
  EXPECT_DEATH(tensor.reshape({5, 7}), "number of elements");
  EXPECT_DEATH(tensor.slice(1, 0, 4).reshape({16}), "cannot be reshaped");
  EXPECT_DEATH(must_allocate(*pool, DType::kQ8_0, {1, 64}).slice(1, 0, 16), "cuts through");
}

}  // namespace
}  // namespace butterfly
