// butterfly bench memory: the pool and the arena beside malloc, and the conversions of lossy wire types beside the
// memory's own speed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/inference/row_codec.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/arena.h"
#include "butterfly/tensor/pool.h"
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

struct ConversionRow {
  std::string_view isa;
  std::string name;
  std::vector<double> gb_per_s;
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

/// Float to `type` and back, by the portable code and by what this node chose.
Result<std::vector<ConversionRow>> measure_conversions(DType type, Isa chosen, int rounds) {
  constexpr std::size_t kCount = std::size_t{16} << 20;  // 64 MiB of float: far more than caches hold
  const std::uint64_t narrow_bytes = *row_bytes(type, kCount);
  BF_ASSIGN_OR_RETURN(const AlignedBuffer floats, AlignedBuffer::create(kCount * sizeof(float)));
  BF_ASSIGN_OR_RETURN(const AlignedBuffer encoded, AlignedBuffer::create(narrow_bytes));
  const std::span<float> wide(reinterpret_cast<float*>(floats.data()), kCount);
  const MutableByteSpan narrow(encoded.data(), narrow_bytes);
  for (std::size_t i = 0; i < kCount; ++i) wide[i] = static_cast<float>(i % 4096) * 0.37f - 700.0f;
  std::ranges::fill(narrow, std::byte{0});
  std::vector<ConversionRow> rows;
  const double bytes = static_cast<double>(kCount * sizeof(float) + narrow_bytes);
  for (const Isa isa : {Isa::kReference, chosen}) {
    if (isa == Isa::kReference && !rows.empty()) break;  // it was chosen
    const Kernels& kernels = kernels_for(isa);
    ConversionRow down{to_string(isa), fmt::format("f32 to {}", to_string(type)), {}};
    ConversionRow up{to_string(isa), fmt::format("{} to f32", to_string(type)), {}};
    for (int round = 0; round < rounds; ++round) {
      down.gb_per_s.push_back(bytes / time_each(1, [&] { encode_row(kernels, type, wide, narrow); }));
      up.gb_per_s.push_back(bytes / time_each(1, [&] { decode_row(kernels, type, narrow, wide); }));
    }
    rows.push_back(std::move(down));
    rows.push_back(std::move(up));
  }
  return rows;
}

void print(const std::vector<AllocationRow>& allocations, const std::vector<ConversionRow>& conversions,
           double memory_gb_per_s) {
  std::printf("ns to allocate, touch and free, median (spread)\n%10s %24s %24s %24s\n", "bytes", "malloc", "pool",
              "arena");
  const auto spread = [](const std::vector<double>& v) {
    return fmt::format("{:.0f} ({:.0f} to {:.0f})", median(v), *std::min_element(v.begin(), v.end()),
                       *std::max_element(v.begin(), v.end()));
  };
  for (const AllocationRow& row : allocations) {
    std::printf("%10llu %24s %24s %24s\n", static_cast<unsigned long long>(row.bytes), spread(row.malloc_ns).c_str(),
                spread(row.pool_ns).c_str(), spread(row.arena_ns).c_str());
  }
  std::printf("conversions, one thread, GB/s read and written together; memory reads at %.1f GB/s\n", memory_gb_per_s);
  for (const ConversionRow& row : conversions) {
    std::printf("%10s %12s %6.2f GB/s (%.2f to %.2f), %.0f %% of that\n", std::string(row.isa).c_str(),
                row.name.c_str(), median(row.gb_per_s), *std::min_element(row.gb_per_s.begin(), row.gb_per_s.end()),
                *std::max_element(row.gb_per_s.begin(), row.gb_per_s.end()),
                100 * median(row.gb_per_s) / memory_gb_per_s);
  }
}

Status run(const MemoryCommand& command) {
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  BF_ASSIGN_OR_RETURN(const Peaks peaks, measure_peaks({.isa = isa, .threads = 1}));
  std::vector<AllocationRow> allocations;
  for (const std::uint64_t bytes : {64ull, 1024ull, 8192ull, 65'536ull, 1ull << 20, 16ull << 20}) {
    BF_ASSIGN_OR_RETURN(AllocationRow row, measure_allocation(bytes, command.rounds));
    allocations.push_back(std::move(row));
  }
  std::vector<ConversionRow> conversions;
  for (const DType type : {DType::kF16, DType::kQ8_0}) {
    BF_ASSIGN_OR_RETURN(std::vector<ConversionRow> rows, measure_conversions(type, isa, command.rounds));
    std::ranges::move(rows, std::back_inserter(conversions));
  }
  const double memory = peaks.one_thread.memory_read_gb_per_s;
  if (!command.json) {
    print(allocations, conversions, memory);
    return {};
  }
  nlohmann::ordered_json j{{"memory_read_gb_per_s", memory}};
  for (const AllocationRow& row : allocations) {
    j["allocations"].push_back(
        {{"bytes", row.bytes}, {"malloc_ns", row.malloc_ns}, {"pool_ns", row.pool_ns}, {"arena_ns", row.arena_ns}});
  }
  for (const ConversionRow& row : conversions) {
    j["conversions"].push_back({{"isa", row.isa},
                                {"name", row.name},
                                {"gb_per_s", row.gb_per_s},
                                {"fraction_of_memory_read", median(row.gb_per_s) / memory}});
  }
  print_json(j);
  return {};
}

}  // namespace

void add_bench_memory(Command bench, Action& action) {
  auto sub = bench.add_subcommand("memory", "Pool and arena beside malloc; floats to halves and q8_0 and back");
  const auto command = std::make_shared<MemoryCommand>();
  sub.add_option("--rounds", command->rounds, "Measured rounds").in_range(1, 1000).show_default();
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
