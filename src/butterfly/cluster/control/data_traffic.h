// What the data connections of a cluster have carried: told by workers, added up by the coordinator. A plain value.
#pragma once

#include <cstdint>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

/// What data connections have carried.
struct DataTraffic {
  std::uint64_t bytes = 0;        // framing included
  std::uint64_t bytes_saved = 0;  // that packing left out
  std::uint64_t lz4_messages = 0, zstd_messages = 0;

  void add(const ChannelStats& sent) {
    bytes += sent.bytes_sent;
    bytes_saved += sent.bytes_saved;
    lz4_messages += sent.lz4_messages;
    zstd_messages += sent.zstd_messages;
  }
};

}  // namespace butterfly
