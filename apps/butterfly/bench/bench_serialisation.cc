// butterfly bench serialisation: gradients into frames and out of them again, and through connections with socket
// buffers of several sizes, packed or not.
#include <fcntl.h>
#include <sys/socket.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>
#include <thread>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/trace/trace.h"
#include "butterfly/train/data/permutation.h"
#include "butterfly/wire/channel/byte_stream.h"
#include "butterfly/wire/tcp/make_stream.h"
#include "butterfly/wire/tcp/tcp_channel.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kTimeoutMs = 60'000;

struct SerialisationCommand {
  std::vector<std::size_t> sizes{1720, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20};
  std::vector<int> buffers{512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20};
  std::size_t bytes = std::size_t{16} << 20;  // of the gradient that crosses connections
  int rounds = 5;
  bool json = false;
};

/// One way of making bytes, timed over one size.
struct Frames {
  std::size_t bytes = 0;
  std::vector<double> framed, encoded, decoded;  // GB/s of each round
};

struct Crossing {
  int asked = 0, send_buffer = 0, receive_buffer = 0;  // bytes; what the kernel made of it, its own overhead left out
  Compression mode = Compression::kOff;
  std::vector<double> gb_per_s;  // of the gradient, not of what travelled
  double ratio = 1.0;
};

/// Normally distributed floats of deviation 1e-3: bytes of the kind that gradients are, of which only exponents repeat.
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

/// Root may go over the system's limit.
void set_buffers(const Descriptor& fd, int bytes) {
  const auto set = [&](int forced, int limited) {
    if (::setsockopt(fd.get(), SOL_SOCKET, forced, &bytes, sizeof(bytes)) == 0) return;
    ::setsockopt(fd.get(), SOL_SOCKET, limited, &bytes, sizeof(bytes));
  };
  set(SO_SNDBUFFORCE, SO_SNDBUF);
  set(SO_RCVBUFFORCE, SO_RCVBUF);
}

/// The kernel counts its own overhead with as much again.
int buffer_of(const Descriptor& fd, int option) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  ::getsockopt(fd.get(), SOL_SOCKET, option, &bytes, &size);
  return bytes / 2;
}

struct Link {
  std::unique_ptr<TcpChannel> near, far;
};

/// A connection whose buffers are as asked for: set before it is made, since that decides the window.
Result<Link> make_link(Crossing& crossing) {
  BF_ASSIGN_OR_RETURN(const auto addresses, resolve("127.0.0.1:0", after_ms(1000)));
  BF_ASSIGN_OR_RETURN(const Descriptor listening, listen_on(addresses.front(), "127.0.0.1:0"));
  set_buffers(listening, crossing.asked);  // what it accepts inherits them
  BF_ASSIGN_OR_RETURN(const SocketAddress bound, bound_address(listening));
  Descriptor near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_buffers(near, crossing.asked);
  if (::connect(near.get(), bound.get(), bound.length) != 0) {
    return make_error(ErrorCode::kUnavailable, "cannot connect to a socket of our own: {}", system_message(errno));
  }
  Descriptor far(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!far.valid()) return make_error(ErrorCode::kUnavailable, "cannot accept: {}", system_message(errno));
  if (::fcntl(near.get(), F_SETFL, O_NONBLOCK) != 0) {
    return make_error(ErrorCode::kIo, "a socket stays blocking: {}", system_message(errno));
  }
  disable_nagle(near.get());
  disable_nagle(far.get());
  crossing.send_buffer = buffer_of(near, SO_SNDBUF);
  crossing.receive_buffer = buffer_of(far, SO_RCVBUF);
  Link link;
  BF_ASSIGN_OR_RETURN(auto near_stream, make_stream(std::move(near), {}, StreamSide::kClient));
  BF_ASSIGN_OR_RETURN(auto far_stream, make_stream(std::move(far), {}, StreamSide::kServer));
  link.near = std::make_unique<TcpChannel>(std::move(near_stream), "far", TcpOptions{});
  link.far = std::make_unique<TcpChannel>(std::move(far_stream), "near", TcpOptions{});
  return link;
}

/// One round: the gradient a few times through a fresh connection, and an answer at the end.
Status cross(const Payload& gradient, Crossing& crossing) {
  constexpr std::size_t kCount = 4;
  BF_ASSIGN_OR_RETURN(Link link, make_link(crossing));
  link.near->compress({.mode = crossing.mode, .element_bytes = sizeof(float)});
  Status far;
  bool same = false;
  std::thread receiver([&] {
    far = [&]() -> Status {
      for (std::size_t i = 0; i <= kCount; ++i) {  // the first is not timed
        BF_ASSIGN_OR_RETURN(const Message message, link.far->receive(nullptr, after_ms(kTimeoutMs)));
        same = std::ranges::equal(message.payload.bytes.first(4096), gradient.bytes.first(4096)) &&
               message.payload.bytes.size() == gradient.bytes.size();
        if (i == 0 || i == kCount) BF_TRY(link.far->send({}, after_ms(kTimeoutMs)));
      }
      return {};
    }();
    if (!far) link.far->close();
  });
  std::uint64_t begin = 0;
  const Status near = [&]() -> Status {
    for (std::size_t i = 0; i <= kCount; ++i) {
      if (i == 1) begin = trace::now_ns();
      Message message;
      message.payload = gradient;
      BF_TRY(link.near->send(std::move(message), after_ms(kTimeoutMs)));
      if (i == 0 || i == kCount) BF_TRY(link.near->receive(nullptr, after_ms(kTimeoutMs)));
    }
    return {};
  }();
  const double speed = gb_per_s(gradient.bytes.size(), kCount, begin);
  if (!near) link.near->close();
  receiver.join();
  BF_TRY(far);
  BF_TRY(near);
  if (!same) return make_error(ErrorCode::kBadData, "a gradient came out of a connection other than it went in");
  const ChannelStats stats = link.near->stats();
  crossing.gb_per_s.push_back(speed);
  crossing.ratio = static_cast<double>(stats.bytes_sent + stats.bytes_saved) / static_cast<double>(stats.bytes_sent);
  return {};
}

nlohmann::ordered_json to_json(const std::vector<Frames>& all, const std::vector<Crossing>& crossings) {
  nlohmann::ordered_json j;
  for (const Frames& frames : all) {
    j["frames"].push_back({{"bytes", frames.bytes},
                           {"frame_gb_per_s", frames.framed},
                           {"encode_gb_per_s", frames.encoded},
                           {"decode_gb_per_s", frames.decoded}});
  }
  for (const Crossing& crossing : crossings) {
    j["crossings"].push_back({{"asked", crossing.asked},
                              {"send_buffer", crossing.send_buffer},
                              {"receive_buffer", crossing.receive_buffer},
                              {"codec", to_string(crossing.mode)},
                              {"gb_per_s", crossing.gb_per_s},
                              {"ratio", crossing.ratio}});
  }
  return j;
}

std::string spread(const std::vector<double>& values) {
  const auto [smallest, largest] = std::ranges::minmax(values);
  return fmt::format("{:.2f} ({:.2f}-{:.2f})", median(values), smallest, largest);
}

void print(const std::vector<Frames>& all, const std::vector<Crossing>& crossings) {
  std::printf("GB/s, median (smallest-largest)\n%10s  %-22s %-22s %-22s\n", "bytes", "header and checksum",
              "encode, one copy", "decode, one copy");
  for (const Frames& frames : all) {
    std::printf("%10zu  %-22s %-22s %-22s\n", frames.bytes, spread(frames.framed).c_str(),
                spread(frames.encoded).c_str(), spread(frames.decoded).c_str());
  }
  std::printf("\n%11s %11s %11s  %-5s  %-20s  %s\n", "buffer", "sending", "receiving", "codec", "GB/s", "ratio");
  for (const Crossing& crossing : crossings) {
    std::printf("%11d %11d %11d  %-5s  %-20s  %.3f\n", crossing.asked, crossing.send_buffer, crossing.receive_buffer,
                std::string(to_string(crossing.mode)).c_str(), spread(crossing.gb_per_s).c_str(), crossing.ratio);
  }
  std::printf(
      "The copy stands for the one into and out of a socket's buffer. GB/s over a connection (plain loopback, both "
      "endpoints "
      "in this process) are of the gradient, not of what\ntravels; sending and receiving are the buffers that the "
      "kernel gave. Gradients are normally distributed floats; lz4 and zstd put bytes of equal significance side by "
      "side first.\n");
}

Status run(const SerialisationCommand& command) {
  std::vector<Frames> all;
  for (const std::size_t bytes : command.sizes) {
    all.push_back({.bytes = bytes, .framed = {}, .encoded = {}, .decoded = {}});
  }
  std::vector<Crossing> crossings;
  for (const int buffer : command.buffers) {
    for (const Compression mode : {Compression::kOff, Compression::kLz4, Compression::kZstd}) {
      crossings.push_back({.asked = buffer, .mode = mode, .gb_per_s = {}});
    }
  }
  BF_ASSIGN_OR_RETURN(const Payload gradient, make_gradient(command.bytes));
  for (int round = 0; round < command.rounds; ++round) {
    for (Frames& frames : all) {
      BF_ASSIGN_OR_RETURN(const Payload one, make_gradient(frames.bytes));
      BF_TRY(measure_frames(one, frames));
    }
    for (Crossing& crossing : crossings) {
      if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
      BF_TRY(cross(gradient, crossing));
    }
  }
  if (command.json) {
    print_json(to_json(all, crossings));
  } else {
    print(all, crossings);
  }
  return {};
}

}  // namespace

void add_bench_serialisation(Command bench, Action& action) {
  auto sub = bench.add_subcommand("serialisation", "Gradients into and out of frames, and through sockets' buffers");
  const auto command = std::make_shared<SerialisationCommand>();
  sub.add_option("--sizes", command->sizes, "Bytes of gradients that become frames")
      .comma_separated()
      .in_range(4, 1 << 28);
  sub.add_option("--buffers", command->buffers, "Bytes of sockets' buffers").comma_separated().in_range(4096, 1 << 28);
  sub.add_option("--bytes", command->bytes, "Of the gradient that crosses connections")
      .in_range(4096, 1 << 28)
      .show_default();
  sub.add_option("--rounds", command->rounds, "Rounds over everything").in_range(1, 1000).show_default();
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
