// The parts of `butterfly bench wire`. Each prints its table, or adds its rows to the JSON where that is asked for.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly::app {

struct WireCommand {
  std::vector<std::string> only;  // empty: all parts
  int rounds = 5;
  std::size_t bytes_max = std::size_t{64} << 20;                                                  // exchanges
  std::vector<std::size_t> sizes{1720, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20};  // frames
  // The table.
  std::vector<std::string> serialisations{"frame", "copy", "protobuf"}, codecs{"off", "lz4", "zstd"};
  std::vector<int> buffers{512 << 10, 4 << 20};
  std::vector<std::string> logs{"off", "debug"};
  std::size_t bytes = std::size_t{4} << 20;
  int messages = 16;  // of an epoch
  int epochs = 1;
  double seconds = 0;  // 0: for the epochs
  bool json = false;
};

/// One way between two threads, for channels with and without TLS and for plain sockets.
Status measure_wire_exchanges(const WireCommand& command, nlohmann::ordered_json& rows);

/// Gradients into frames and out of them, in memory.
Status measure_wire_frames(const WireCommand& command, nlohmann::ordered_json& rows);

/// Gradients from one process to another: serialisation x codec x buffer x log level, by node.
Status measure_wire_table(const WireCommand& command, nlohmann::ordered_json& rows);

/// Normally distributed floats of deviation 1e-3: bytes of the kind that gradients are, of which only exponents repeat.
Result<Payload> make_gradient(std::size_t bytes);

}  // namespace butterfly::app
