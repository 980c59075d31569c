#include <cstdio>
#include <thread>

#include "bench/bench.h"
#include "bench/temporary_folder.h"
#include "bench/wire/bench_endpoints.h"
#include "bench/wire/wire_parts.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/spin.h"

namespace butterfly::app {
namespace {

constexpr std::array<std::size_t, 8> kSizes{64,
                                            1024,
                                            8192,
                                            std::size_t{64} << 10,
                                            std::size_t{256} << 10,
                                            std::size_t{1} << 20,
                                            std::size_t{16} << 20,
                                            std::size_t{64} << 20};

struct Setting {
  Engine engine = Engine::kRaw;
  Waiting waiting = Waiting::kSpin;
};

constexpr std::array<Setting, 8> kSettings{{{Engine::kRaw, Waiting::kSpin},
                                            {Engine::kPlain, Waiting::kSpin},
                                            {Engine::kTls, Waiting::kSpin},
                                            {Engine::kRaw, Waiting::kBlock},
                                            {Engine::kPlain, Waiting::kBlock},
                                            {Engine::kTls, Waiting::kBlock},
                                            {Engine::kPlain, Waiting::kDefault},
                                            {Engine::kTls, Waiting::kDefault}}};

struct Cell {
  std::vector<double> one_way_us;  // of every exchange
  std::vector<double> gb_per_s;    // of every round
  StreamCopies copies;             // of `copied_bytes` of payload
  std::uint64_t copied_bytes = 0;
  ChannelStats waits;  // of the exchanges
};

/// Runs `here` on this thread and `there` on another; the first error of either.
template <typename Here, typename There>
Status side_by_side(Here here, There there) {
  Status far;
  std::thread other([&] { far = there(); });
  Status near = here();
  other.join();
  return near ? far : near;
}

Status measure_exchanges(Endpoints& endpoints, std::size_t bytes, Cell& cell) {
  const int count = bytes <= 65'536 ? 400 : bytes <= (1u << 20) ? 50 : 4;
  const int warm = bytes <= 65'536 ? 50 : 1;
  const ChannelStats before = endpoints.near->stats();
  Status status = side_by_side(
      [&]() -> Status {
        for (int i = 0; i < warm + count; ++i) {
          const std::uint64_t begin = trace::now_ns();
          BF_TRY(endpoints.near->send(bytes));
          BF_TRY(endpoints.near->receive(bytes));
          if (i >= warm) cell.one_way_us.push_back(static_cast<double>(trace::now_ns() - begin) * 0.5e-3);
        }
        return {};
      },
      [&]() -> Status {
        for (int i = 0; i < warm + count; ++i) {
          BF_TRY(endpoints.far->receive(bytes));
          BF_TRY(endpoints.far->send(bytes));
        }
        return {};
      });
  const ChannelStats after = endpoints.near->stats();
  cell.waits.waits_spun += after.waits_spun - before.waits_spun;
  cell.waits.waits_blocked += after.waits_blocked - before.waits_blocked;
  return status;
}

Status measure_stream(Endpoints& endpoints, std::size_t bytes, Cell& cell) {
  constexpr std::size_t kVolume = std::size_t{64} << 20;
  const std::size_t count = std::clamp<std::size_t>(kVolume / bytes, 2, 20'000);
  const StreamCopies sent_before = endpoints.near->copies();
  const StreamCopies got_before = endpoints.far->copies();
  const std::uint64_t begin = trace::now_ns();
  const Status done = side_by_side(
      [&]() -> Status {
        for (std::size_t i = 0; i < count; ++i) BF_TRY(endpoints.near->send(bytes));
        return endpoints.near->receive(1);  // the last message has arrived
      },
      [&]() -> Status {
        for (std::size_t i = 0; i < count; ++i) BF_TRY(endpoints.far->receive(bytes));
        return endpoints.far->send(1);
      });
  const std::uint64_t end = trace::now_ns();
  BF_TRY(done);
  const double volume = static_cast<double>(count) * static_cast<double>(bytes);
  cell.gb_per_s.push_back(volume / static_cast<double>(end - begin));
  cell.copies.staged_bytes += endpoints.near->copies().staged_bytes - sent_before.staged_bytes;
  cell.copies.sealed_bytes += endpoints.near->copies().sealed_bytes - sent_before.sealed_bytes;
  cell.copies.opened_bytes += endpoints.far->copies().opened_bytes - got_before.opened_bytes;
  cell.copied_bytes += count * bytes;
  return {};
}

using SettingsRow = std::array<Cell, kSettings.size()>;

double copies_per_tensor(const Cell& cell) {
  const auto all = cell.copies.staged_bytes + cell.copies.sealed_bytes + cell.copies.opened_bytes;
  return cell.copied_bytes == 0 ? 0 : static_cast<double>(all) / static_cast<double>(cell.copied_bytes);
}

void print_exchange_head() {
  std::printf(
      "              microseconds one way, median                       GB/s one way                   copies/tensor\n"
      "              spinning              blocking              as nodes do    spinning          blocking\n"
      "    bytes     raw   plain     TLS     raw   plain     TLS   plain    TLS   raw  plain TLS   raw  plain TLS   "
      "plain  TLS\n");
}

void print_row(std::size_t bytes, const SettingsRow& row) {
  std::printf("%9zu", bytes);
  for (const Cell& cell : row) std::printf(" %7.1f", median(cell.one_way_us));
  for (std::size_t i = 0; i < 6; ++i) std::printf(" %5.2f", median(row[i].gb_per_s));
  std::printf("  %5.2f %5.2f\n", copies_per_tensor(row[1]), copies_per_tensor(row[2]));
}

nlohmann::ordered_json to_json(std::size_t bytes, const SettingsRow& row) {
  nlohmann::ordered_json j{{"bytes", bytes}};
  for (std::size_t i = 0; i < row.size(); ++i) {
    auto times = row[i].one_way_us;
    std::sort(times.begin(), times.end());
    j["results"].push_back({{"engine", to_string(kSettings[i].engine)},
                            {"waiting", to_string(kSettings[i].waiting)},
                            {"one_way_us", median(times)},
                            {"one_way_us_p10", times[times.size() / 10]},
                            {"one_way_us_p90", times[times.size() * 9 / 10]},
                            {"gb_per_s", row[i].gb_per_s},
                            {"copies_per_tensor", copies_per_tensor(row[i])},
                            {"waits_spun", row[i].waits.waits_spun},
                            {"waits_blocked", row[i].waits.waits_blocked}});
  }
  return j;
}

void print_findings(const std::vector<std::pair<std::size_t, SettingsRow>>& rows) {
  for (const auto& [bytes, row] : rows) {
    if (bytes != 8192) continue;
    const auto us = [&row = row](std::size_t i) { return median(row[i].one_way_us); };
    std::printf(
        "8 KiB one way: TLS adds %.1f us spinning, %.1f us blocking, %.1f us as nodes do; a channel without TLS adds "
        "%.1f us to raw sockets\n",
        us(2) - us(1), us(5) - us(4), us(7) - us(6), us(1) - us(0));
    for (const std::size_t i : {std::size_t{6}, std::size_t{7}}) {
      std::printf("8 KiB as nodes do, %s: %llu waits ended by looking again, %llu by being woken\n",
                  std::string(to_string(kSettings[i].engine)).c_str(),
                  static_cast<unsigned long long>(row[i].waits.waits_spun),
                  static_cast<unsigned long long>(row[i].waits.waits_blocked));
    }
  }
  std::printf(
      "plain and TLS are this program's channels (frames with checksums); raw is send() and recv() alone. As nodes do: "
      "look again for 50 us, then block.\ncopies/tensor: bytes that user space copied or enciphered, counted while "
      "streaming, by bytes of tensor. Plain hands the tensor's memory to the kernel; TLS\nenciphers it once on its way "
      "to the kernel, copies it once out of the deciphered record, and puts small pieces together first. The kernel "
      "copies twice more, in every column.\n");
}

Result<SettingsRow> measure_row(std::array<Endpoints, kSettings.size()>& endpoints, std::size_t bytes, int rounds) {
  SettingsRow row;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kSettings.size(); ++i) {
      if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
      BF_TRY(measure_exchanges(endpoints[i], bytes, row[i]));
      BF_TRY(measure_stream(endpoints[i], bytes, row[i]));
    }
  }
  return row;
}

Status measure_exchanged(const WireCommand& command, const std::string& folder, nlohmann::ordered_json& all) {
  std::array<Endpoints, kSettings.size()> endpoints;
  for (std::size_t i = 0; i < kSettings.size(); ++i) {
    BF_ASSIGN_OR_RETURN(endpoints[i], make_endpoints(kSettings[i].engine, kSettings[i].waiting, command.bytes_max,
                                                     folder + "/cluster"));
  }
  if (!may_spin()) std::fprintf(stderr, "this process may use one core only: nothing spins\n");
  if (!command.json) print_exchange_head();
  std::vector<std::pair<std::size_t, SettingsRow>> rows;
  for (const std::size_t bytes : kSizes) {
    if (bytes > command.bytes_max) break;
    BF_ASSIGN_OR_RETURN(SettingsRow row, measure_row(endpoints, bytes, command.rounds));
    if (!command.json) print_row(bytes, row);
    std::fflush(stdout);
    rows.emplace_back(bytes, std::move(row));
  }
  for (const auto& [bytes, row] : rows) all.push_back(to_json(bytes, row));
  if (!command.json) print_findings(rows);
  return {};
}

}  // namespace

Status measure_wire_exchanges(const WireCommand& command, nlohmann::ordered_json& rows) {
  BF_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create());
  return measure_exchanged(command, folder.path(), rows);
}

}  // namespace butterfly::app
