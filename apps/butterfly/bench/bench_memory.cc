// butterfly bench memory: the pool and the arena beside malloc, and slices that share rows beside copies of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/tensor/arena.h"
#include "butterfly/tensor/pool.h"
#include "butterfly/tensor/tensor.h"
#include "butterfly/trace/trace.h"

namespace butterfly::app {
namespace {

struct MemoryCommand {
  int rounds = 9;
  bool json = false;
};

struct AllocationRow {
  std::uint64_t bytes = 0;
  std::vector<double> malloc_ns, pool_ns, arena_ns;  // of every round
};

struct SliceRow {
  std::uint64_t bytes = 0;
  std::vector<double> slice_ns{}, copy_ns{};  // of every round
};

/// Nanoseconds of one call of many.
template <typename Operation>
double time_each(int count, Operation operation) {
  const std::uint64_t begin = trace::now_ns();
  for (int i = 0; i < count; ++i) operation();
  return static_cast<double>(trace::now_ns() - begin) / count;
}

/// Every way writes one byte a page, as the code that allocates will: malloc gives large blocks back to the system each
/// time.
void touch(void* memory, std::uint64_t bytes) {
  auto* data = static_cast<volatile char*>(memory);
  for (std::uint64_t i = 0; i < bytes; i += 4096) data[i] = 1;
}

Result<AllocationRow> measure_allocation(std::uint64_t bytes, int rounds) {
  AllocationRow row{.bytes = bytes, .malloc_ns = {}, .pool_ns = {}, .arena_ns = {}};
  const int count = bytes <= 65'536 ? 20'000 : 100;
  const auto pool = Pool::create();
  Arena arena(pool);
  bool failed = false;
  for (int round = 0; round < rounds; ++round) {
    row.malloc_ns.push_back(time_each(count, [&] {
      void* memory = std::aligned_alloc(kTensorAlignment, bytes);
      failed = failed || memory == nullptr;
      if (memory != nullptr) touch(memory, bytes);
      std::free(memory);
    }));
    row.pool_ns.push_back(time_each(count, [&] {
      const auto storage = pool->allocate(bytes);
      failed = failed || !storage;
      if (storage) touch(storage->bytes.data(), bytes);
    }));
    row.arena_ns.push_back(time_each(count, [&] {
      const auto memory = arena.allocate(bytes);
      failed = failed || !memory;
      if (memory) touch(memory->data(), bytes);
      arena.reset();
    }));
  }
  if (failed) return make_error(ErrorCode::kNoMemory, "{} were not to be had", format_bytes(bytes));
  return row;
}

/// Half of a tensor's rows as a slice, which shares them, and as a copy from the pool.
Result<SliceRow> measure_slices(std::uint64_t bytes, int rounds) {
  constexpr std::int64_t kColumns = 16;
  const auto pool = Pool::create();
  const auto rows = static_cast<std::int64_t>(bytes * 2 / (kColumns * sizeof(float)));
  BF_ASSIGN_OR_RETURN(const Tensor tensor, Tensor::allocate(*pool, DType::kF32, {rows, kColumns}));
  SliceRow row{.bytes = bytes};
  const int count = bytes <= 65'536 ? 20'000 : 100;
  bool failed = false;
  for (int round = 0; round < rounds; ++round) {
    row.slice_ns.push_back(time_each(count, [&] {
      const Tensor half = tensor.slice(0, rows / 2, rows);
      failed = failed || half.dim(0) == 0;
    }));
    row.copy_ns.push_back(time_each(count, [&] {
      const auto half = deep_copy(tensor.view().slice(0, rows / 2, rows), *pool);
      failed = failed || !half;
    }));
  }
  if (failed) return make_error(ErrorCode::kNoMemory, "{} were not to be had", format_bytes(bytes));
  return row;
}

std::string spread_ns(const std::vector<double>& times) {
  const auto [least, most] = std::ranges::minmax(times);
  return fmt::format("{:.0f} ({:.0f} to {:.0f})", median(times), least, most);
}

void print(const std::vector<AllocationRow>& allocations, const std::vector<SliceRow>& slices) {
  std::printf("ns to allocate, touch and free, median (spread)\n%10s %24s %24s %24s\n", "bytes", "malloc", "pool",
              "arena");
  for (const AllocationRow& row : allocations) {
    std::printf("%10llu %24s %24s %24s\n", static_cast<unsigned long long>(row.bytes), spread_ns(row.malloc_ns).c_str(),
                spread_ns(row.pool_ns).c_str(), spread_ns(row.arena_ns).c_str());
  }
  std::printf("ns for half of a tensor's rows, median (spread)\n%10s %24s %24s\n", "bytes", "slice, shared", "copy");
  for (const SliceRow& row : slices) {
    std::printf("%10llu %24s %24s\n", static_cast<unsigned long long>(row.bytes), spread_ns(row.slice_ns).c_str(),
                spread_ns(row.copy_ns).c_str());
  }
}

Status run(const MemoryCommand& command) {
  std::vector<AllocationRow> allocations;
  std::vector<SliceRow> slices;
  for (const std::uint64_t bytes : {64ull, 1024ull, 8192ull, 65'536ull, 1ull << 20, 16ull << 20}) {
    BF_ASSIGN_OR_RETURN(AllocationRow row, measure_allocation(bytes, command.rounds));
    allocations.push_back(std::move(row));
    BF_ASSIGN_OR_RETURN(SliceRow slice, measure_slices(bytes, command.rounds));
    slices.push_back(std::move(slice));
    if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
  }
  if (!command.json) {
    print(allocations, slices);
    return {};
  }
  nlohmann::ordered_json j;
  for (const AllocationRow& row : allocations) {
    j["allocations"].push_back(
        {{"bytes", row.bytes}, {"malloc_ns", row.malloc_ns}, {"pool_ns", row.pool_ns}, {"arena_ns", row.arena_ns}});
  }
  for (const SliceRow& row : slices) {
    j["slices"].push_back({{"bytes", row.bytes}, {"slice_ns", row.slice_ns}, {"copy_ns", row.copy_ns}});
  }
  print_json(j);
  return {};
}

}  // namespace

void add_bench_memory(Command bench, Action& action) {
  auto sub = bench.add_subcommand("memory", "Pool and arena beside malloc, slices beside copies");
  const auto command = std::make_shared<MemoryCommand>();
  sub.add_option("--rounds", command->rounds, "Measured rounds").in_range(1, 1000).show_default();
  sub.footer(
      "Each way writes a byte of every page, as the code that allocates will; malloc gives large blocks back to the "
      "system each time.\nConversions between types: butterfly bench kernels --only conversion.");
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
