// Counts what a step asks the allocator for: the memory of a TrainableTransformer is planned when it is made.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/model/training/training_model_test.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t padded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, padded == 0 ? alignment : padded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Allocations of the whole test program, the libraries that it loads included.
void* operator new(std::size_t bytes) {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// The runtime of a sanitizer brings these two itself, to go with its own operator delete.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
// Inlined, they would be warned of: free() for what the compiler thinks another new has made.
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace butterfly {
namespace {

long allocations_of_third_step(const std::string& kind, const TransformerOptions& options) {
  const auto transformer = make_transformer(transformer_config(kind), options);
  const TransformerInput input = transformer_input(transformer->config(), options);
  const GradientsReady ready = [](ParameterRange) {};
  for (int step = 0; step < 3; ++step) {
    allocations = 0;
    counting = true;
    const bool done = transformer->forward(input.tokens, input.targets) && transformer->backward(1.0f, ready);
    transformer->weights_changed();
    counting = false;
    EXPECT_TRUE(done);
  }
  return allocations;
}

TEST(TrainingAllocation, ThereIsNoneInTheThirdStep) {
  for (const char* kind : {"scaled", "gpt2", "both_norms", "experts"}) {
    for (const Isa isa : supported_isas()) {
      if (kSanitized && isa != supported_isas().back()) continue;
      for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
        for (const char* fusion : {"all", "none"}) {
          for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kBlock}) {
            const TransformerOptions options{.precision = precision,
                                             .recompute = recompute,
                                             .fusion = *parse_fusion(fusion),
                                             .micro_batch = 2,
                                             .seq = 36,
                                             .threads = 2,
                                             .isa = isa,
                                             .router_aux_loss = 0.01};
            EXPECT_EQ(allocations_of_third_step(kind, options), 0)
                << kind << " " << to_string(isa) << " " << to_string(precision) << " " << fusion << " "
                << to_string(recompute);
          }
        }
      }
    }
  }
}

TEST(TrainingAllocation, IsCounted) {
  allocations = 0;
  counting = true;
  const auto transformer = TrainableTransformer::create(transformer_config("llama"), {.seq = 8});
  counting = false;
  EXPECT_TRUE(transformer);
  EXPECT_GT(allocations, 10);
}

}  // namespace
}  // namespace butterfly
