#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>

#include "bench/bench.h"
#include "bench/wire/wire_parts.h"
#include "butterfly/base/json.h"
#include "butterfly/trace/trace.h"
#include "butterfly/train/data/permutation.h"
#include "butterfly/wire/channel/frame.h"

namespace butterfly::app {
namespace {

/// One size, timed.
struct Frames {
  std::size_t bytes = 0;
  std::vector<double> framed, encoded, decoded;  // GB/s of each round
};

double gb_per_s(std::size_t bytes, std::size_t count, std::uint64_t begin) {
  return static_cast<double>(bytes) * static_cast<double>(count) / static_cast<double>(trace::now_ns() - begin);
}

/// A frame as a channel makes it: floats stay where they lie.
FrameHeaderBytes make_frame(std::uint64_t tag, ByteSpan payload) {
  return encode_frame_header(
      {.tag = tag, .payload_bytes = payload.size(), .body_checksum = body_checksum({}, payload)});
}

/// `socket` stands for the kernel's buffer: what write() and read() copy, without them.
Status measure_frames(const Payload& gradient, Frames& frames) {
  const ByteSpan payload = gradient.bytes;
  const std::size_t count = std::clamp<std::size_t>((std::size_t{64} << 20) / payload.size(), 4, 20'000);
  std::vector<std::byte> socket(kFrameHeaderBytes + payload.size());
  BF_ASSIGN_OR_RETURN(const Payload incoming, allocate_payload(payload.size()));
  std::ranges::fill(incoming.bytes, std::byte{1});  // memory is really there before it is timed

  std::uint64_t begin = trace::now_ns();
  for (std::size_t i = 0; i < count; ++i) {
    const FrameHeaderBytes header = make_frame(i, payload);
    std::memcpy(socket.data(), header.data(), header.size());
  }
  frames.framed.push_back(gb_per_s(payload.size(), count, begin));

  begin = trace::now_ns();
  for (std::size_t i = 0; i < count; ++i) {
    const FrameHeaderBytes header = make_frame(i, payload);
    std::memcpy(socket.data(), header.data(), header.size());
    std::memcpy(socket.data() + header.size(), payload.data(), payload.size());
  }
  frames.encoded.push_back(gb_per_s(payload.size(), count, begin));

  FrameReader reader({});
  const auto same_buffer = [&](std::uint64_t size) -> Result<Payload> {
    return Payload{.owner = incoming.owner, .bytes = incoming.bytes.first(size)};
  };
  begin = trace::now_ns();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t read = 0; read < socket.size();) {
      std::size_t moved = 0;
      for (const MutableByteSpan place : reader.wanted()) {
        const std::size_t size = std::min(place.size(), socket.size() - read - moved);
        if (size > 0) std::memcpy(place.data(), socket.data() + read + moved, size);
        moved += size;
      }
      read += moved;
      BF_TRY(reader.advance(moved, same_buffer));
    }
  }
  frames.decoded.push_back(gb_per_s(payload.size(), count, begin));
  if (std::memcmp(incoming.bytes.data(), payload.data(), payload.size()) == 0) return {};
  return make_error(ErrorCode::kBadData, "{} bytes came out of a frame other than they went in", payload.size());
}

std::string spread(const std::vector<double>& values) {
  const auto [smallest, largest] = std::ranges::minmax(values);
  return fmt::format("{:.2f} ({:.2f}-{:.2f})", median(values), smallest, largest);
}

void print_frames(const std::vector<Frames>& all) {
  std::printf("GB/s, median (smallest-largest); the copy stands for the one into and out of a socket's buffer\n");
  std::printf("%10s  %-22s %-22s %-22s\n", "bytes", "header and checksum", "encode, one copy", "decode, one copy");
  for (const Frames& frames : all) {
    std::printf("%10zu  %-22s %-22s %-22s\n", frames.bytes, spread(frames.framed).c_str(),
                spread(frames.encoded).c_str(), spread(frames.decoded).c_str());
  }
}

}  // namespace

Result<Payload> make_gradient(std::size_t bytes) {
  BF_ASSIGN_OR_RETURN(Payload payload, allocate_payload(bytes));
  const std::span floats(reinterpret_cast<float*>(payload.bytes.data()), bytes / sizeof(float));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(mixed(1, i) >> 11) + 0.5) * 0x1p-53));
    floats[i] = static_cast<float>(1e-3 * radius *
                                   std::cos(2.0 * std::numbers::pi * static_cast<double>(mixed(2, i) >> 11) * 0x1p-53));
  }
  return payload;
}

Status measure_wire_frames(const WireCommand& command, nlohmann::ordered_json& rows) {
  std::vector<Frames> all;
  for (const std::size_t bytes : command.sizes) {
    all.push_back({.bytes = bytes, .framed = {}, .encoded = {}, .decoded = {}});
  }
  for (int round = 0; round < command.rounds; ++round) {
    for (Frames& frames : all) {
      if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
      BF_ASSIGN_OR_RETURN(const Payload one, make_gradient(frames.bytes));
      BF_TRY(measure_frames(one, frames));
    }
  }
  if (!command.json) print_frames(all);
  for (const Frames& frames : all) {
    rows.push_back({{"bytes", frames.bytes},
                    {"frame_gb_per_s", frames.framed},
                    {"encode_gb_per_s", frames.encoded},
                    {"decode_gb_per_s", frames.decoded}});
  }
  return {};
}

}  // namespace butterfly::app
