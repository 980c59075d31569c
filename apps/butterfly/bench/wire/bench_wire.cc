// butterfly bench wire: what a message costs between two threads, what a frame costs in memory, and what serialisation,
// codec, socket buffer and log level make of gradients between two processes.
#include <array>
#include <cstdio>

#include "bench/bench.h"
#include "bench/wire/wire_parts.h"
#include "butterfly/base/json.h"

namespace butterfly::app {
namespace {

struct WirePart {
  const char* name;
  Status (*measure)(const WireCommand& command, nlohmann::ordered_json& rows);
};
constexpr std::array<WirePart, 3> kWireParts{
    {{"exchanges", measure_wire_exchanges}, {"frames", measure_wire_frames}, {"table", measure_wire_table}}};

Status run_wire(const WireCommand& command) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  bool first = true;
  for (const WirePart& part : kWireParts) {
    if (!command.only.empty() && std::ranges::count(command.only, part.name) == 0) continue;
    std::fprintf(stderr, "%s\n", part.name);
    if (!command.json && !first) std::printf("\n");
    first = false;
    auto rows = nlohmann::ordered_json::array();
    BF_TRY(part.measure(command, rows));
    j[part.name] = std::move(rows);
  }
  if (command.json) print_json(j);
  return {};
}

void add_table_options(Command sub, WireCommand& command) {
  const char* const group = "The table, from one process to another";
  sub.add_option("--serialisations", command.serialisations, "Ways of making bytes: frame, copy, protobuf")
      .comma_separated()
      .one_of({"frame", "copy", "protobuf"})
      .group(group);
  sub.add_option("--codecs", command.codecs, "Lossless packing: off, lz4, zstd")
      .comma_separated()
      .one_of({"off", "lz4", "zstd"})
      .group(group);
  sub.add_option("--buffers", command.buffers, "Bytes of sockets' buffers")
      .comma_separated()
      .in_range(4096, 1 << 28)
      .group(group);
  sub.add_option("--logs", command.logs, "Log levels of both nodes, to a file: off, info, debug")
      .comma_separated()
      .one_of({"off", "info", "debug"})
      .group(group);
  sub.add_option("--bytes", command.bytes, "Of the gradient").in_range(4096, 1 << 28).show_default().group(group);
  sub.add_option("--messages", command.messages, "Gradients of an epoch")
      .in_range(1, 1 << 20)
      .show_default()
      .group(group);
  auto epochs = sub.add_option("--epochs", command.epochs, "For this number of epochs")
                    .in_range(1, 1 << 20)
                    .show_default()
                    .group(group);
  sub.add_option("--seconds", command.seconds, "Instead: epochs for this long, for each row")
      .in_range(0.001, 86'400.0)
      .excludes(epochs)
      .group(group);
}

}  // namespace

void add_bench_wire(Command bench, Action& action) {
  auto sub = bench.add_subcommand(
      "wire", "Messages over loopback with and without TLS; serialisation, codec, socket buffer and log level");
  const auto command = std::make_shared<WireCommand>();
  sub.add_option("--only", command->only, "Parts: exchanges, frames, table [all]")
      .comma_separated()
      .one_of({"exchanges", "frames", "table"});
  sub.add_option("--rounds", command->rounds, "Rounds over all settings").in_range(1, 1000).show_default();
  sub.add_option("--bytes-max", command->bytes_max, "Largest message of the exchanges")
      .in_range(64, 1 << 26)
      .show_default();
  sub.add_option("--sizes", command->sizes, "Bytes of gradients that become frames")
      .comma_separated()
      .in_range(4, 1 << 28);
  add_table_options(sub, *command);
  sub.footer(
      "frame: this program's messages, a header and a checksum, floats stay where they lie. copy: the same out of and "
      "into a\nbuffer of the sender's and the receiver's own. protobuf: the bytes as a field of a message, as RPC "
      "libraries have them.\nAt debug both nodes log a line for each message, at info one for each epoch.\n"
      "  butterfly bench wire --only table --epochs 10 --codecs off,zstd\n"
      "  butterfly bench wire --only table --seconds 2 --serialisations frame,protobuf --logs off,info,debug");
  finish_bench(sub, action, command, &run_wire);
}

}  // namespace butterfly::app
