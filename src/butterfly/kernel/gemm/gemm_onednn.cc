#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "butterfly/kernel/gemm/gemm_tiles.h"

// From the OpenMP runtime that oneDNN was built with; <omp.h> is not there for every compiler.
extern "C" {
void omp_set_num_threads(int threads);
int omp_get_max_threads();
}

namespace butterfly {
namespace {

/// While it lives, oneDNN does everything on the calling thread: it asks OpenMP, thread by thread, how many it may use.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

struct FreeAligned {
  void operator()(void* memory) const { std::free(memory); }
};
constexpr std::size_t kAlignment = 4096;  // whole pages

/// What a planned matmul depends on.
using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, Transpose,
                       Transpose, Accumulate, bool>;
Key key_of(const GemmCall& call) {
  return {call.m,
          call.n,
          call.k,
          call.a_stride,
          call.b_stride,
          call.c_stride,
          call.a_transposed,
          call.b_transposed,
          call.accumulate,
          call.bias != nullptr};
}

class OneDnnEngine final : public TileEngine {
 public:
  explicit OneDnnEngine(Precision precision)
      : type_(precision == Precision::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16) {}

  std::string_view name() const override { return "onednn"; }

  Status prepare(const GemmCall& call, const TileGrid& grid, int members) override {
    try {
      const OneThread one;
      while (static_cast<int>(members_.size()) < members) members_.push_back({dnnl::stream(engine_), {}, nullptr, 0});
      const std::int64_t last_rows = call.m - (grid.row_tiles - 1) * grid.rows;
      const std::int64_t last_cols = call.n - (grid.col_tiles - 1) * grid.cols;
      GemmCall tile = call;
      for (const std::int64_t rows : {grid.rows, last_rows}) {
        for (const std::int64_t cols : {grid.cols, last_cols}) {
          tile.m = rows;
          tile.n = cols;
          plan(tile);
        }
      }
      return {};
    } catch (const dnnl::error& error) {
      const bool memory = error.status == dnnl_out_of_memory;
      return make_error(memory ? ErrorCode::kNoMemory : ErrorCode::kUnsupported,
                        "oneDNN on a matmul of {} x {} x {}: {}", call.m, call.n, call.k, error.what());
    } catch (const std::bad_alloc&) {
      return make_error(ErrorCode::kNoMemory, "no memory to plan a matmul of {} x {} x {}", call.m, call.n, call.k);
    }
  }

  bool tile(const GemmCall& tile, int member) override {
    const OneThread one;
    Member& self = members_[static_cast<std::size_t>(member)];
    Plan& plan = self.plans.find(key_of(tile))->second;
    // The C interface, as the other one allocates at every execution.
    const auto point = [&](int argument, const void* data) {
      for (const dnnl_exec_arg_t& known : plan.arguments) {
        if (known.arg == argument) dnnl_memory_set_data_handle(known.memory, const_cast<void*>(data));
      }
    };
    point(DNNL_ARG_SRC, tile.a);
    point(DNNL_ARG_WEIGHTS, tile.b);
    point(DNNL_ARG_DST, tile.c);
    point(DNNL_ARG_BIAS, tile.bias);
    point(DNNL_ARG_SCRATCHPAD, self.scratch.get());
    const dnnl_status_t status = dnnl_primitive_execute(plan.primitive.get(), self.stream.get(),
                                                        static_cast<int>(plan.arguments.size()), plan.arguments.data());
    return status == dnnl_success && dnnl_stream_wait(self.stream.get()) == dnnl_success;
  }

 private:
  /// A matmul as one member executes it: the primitive is shared, the arguments' addresses are the member's.
  struct Plan {
    dnnl::matmul primitive;
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  struct Member {
    dnnl::stream stream;
    std::map<Key, Plan> plans;
    std::unique_ptr<void, FreeAligned> scratch;
    std::size_t scratch_bytes = 0;
  };

  dnnl::memory::desc matrix(std::int64_t rows, std::int64_t cols, std::int64_t stride, Transpose transposed) const {
    const auto strides = transposed == Transpose::kYes ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
    return {{rows, cols}, type_, strides};
  }

  dnnl::matmul::primitive_desc describe(const GemmCall& call) const {
    constexpr auto kFloat = dnnl::memory::data_type::f32;
    const auto a = matrix(call.m, call.k, call.a_stride, call.a_transposed);
    const auto b = matrix(call.k, call.n, call.b_stride, call.b_transposed);
    const dnnl::memory::desc c({call.m, call.n}, kFloat, dnnl::memory::dims{call.c_stride, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (call.accumulate == Accumulate::kYes) {
      dnnl::post_ops after;
      after.append_sum(1.0f);
      attributes.set_post_ops(after);
    }
    if (call.bias == nullptr) return {dnnl::matmul::desc(a, b, c), attributes, engine_};
    const dnnl::memory::desc bias({1, call.n}, kFloat, dnnl::memory::format_tag::ab);
    return {dnnl::matmul::desc(a, b, bias, c), attributes, engine_};
  }

  void plan(const GemmCall& tile) {
    const Key key = key_of(tile);
    if (members_.back().plans.contains(key)) return;
    const dnnl::matmul::primitive_desc description = describe(tile);
    const dnnl::matmul primitive(description);
    const std::size_t scratch = description.scratchpad_desc().get_size();
    for (Member& member : members_) {
      if (member.scratch_bytes < scratch) {
        const std::size_t bytes = (scratch + kAlignment - 1) / kAlignment * kAlignment;
        member.scratch.reset(std::aligned_alloc(kAlignment, bytes));
        member.scratch_bytes = member.scratch == nullptr ? 0 : bytes;
        if (member.scratch == nullptr) throw std::bad_alloc();
      }
      Plan plan{primitive, {}, {}};
      const auto argument = [&](int index, const dnnl::memory::desc& layout) {
        plan.memories.push_back(dnnl::memory(layout, engine_, nullptr));
        plan.arguments.push_back({index, plan.memories.back().get()});
      };
      argument(DNNL_ARG_SRC, description.src_desc());
      argument(DNNL_ARG_WEIGHTS, description.weights_desc());
      argument(DNNL_ARG_DST, description.dst_desc());
      if (tile.bias != nullptr) argument(DNNL_ARG_BIAS, description.bias_desc());
      argument(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
      member.plans.emplace(key, std::move(plan));
    }
  }

  dnnl::memory::data_type type_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::vector<Member> members_;
};

}  // namespace

Result<std::unique_ptr<TileEngine>> make_onednn_engine(Precision precision, Isa isa) {
  // oneDNN takes this before its first use alone, and refuses it afterwards.
  if (isa == Isa::kAvx2) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
  try {
    auto engine = std::make_unique<OneDnnEngine>(precision);
    // Whether this CPU can is known only by asking for a matmul.
    const GemmCall probe{.m = 64, .n = 64, .k = 64, .a_stride = 64, .b_stride = 64, .c_stride = 64};
    BF_TRY(engine->prepare(probe, plan_tiles(probe.m, probe.n), 1));
    return engine;
  } catch (const dnnl::error& error) {
    return make_error(ErrorCode::kUnsupported, "oneDNN does not start: {}", error.what());
  }
}

}  // namespace butterfly
