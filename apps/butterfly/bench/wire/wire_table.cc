#include <fcntl.h>
#include <google/protobuf/wrappers.pb.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "bench/bench.h"
#include "bench/temporary_folder.h"
#include "bench/wire/wire_parts.h"
#include "butterfly/base/json.h"
#include "butterfly/base/log.h"
#include "butterfly/base/log_level.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/tcp/make_stream.h"
#include "butterfly/wire/tcp/tcp_channel.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kTableTimeoutMs = 60'000;

enum class MessageKind : std::uint16_t { kWarmUp, kGradient, kEpochEnd, kEnd };
enum class Serialisation : std::uint8_t { kFrame, kCopy, kProtobuf };
constexpr std::array<const char*, 3> kSerialisationNames{"frame", "copy", "protobuf"};

/// What a node saw of one run; the receiver sends it through a pipe.
struct NodeUse {
  double seconds = 0, cpu_s = 0, serialise_s = 0;
  std::uint64_t messages = 0, wire_bytes = 0, log_bytes = 0;
  std::uint64_t socket_buffer = 0;  // that the kernel gave, its own overhead left out
  bool ok = false;
};

struct TableRow {
  Serialisation serialisation = Serialisation::kFrame;
  Compression codec = Compression::kOff;
  int buffer = 0;
  std::string log;
  std::vector<double> gb_per_s{};  // of gradients, not of what travels; of each round
  double ratio = 1;
  NodeUse sender{}, receiver{};  // sums over the rounds
};

/// CPU time of this process with all its threads.
double process_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Lines of this process's log go to a file while it lives.
class LogToFile {
 public:
  LogToFile(const std::string& path, const std::string& level) : file_(path), before_(set_log_level(level)) {
    redirect_log(&file_);
  }
  ~LogToFile() {
    redirect_log(nullptr);
    set_log_level(before_);
  }
  LogToFile(const LogToFile&) = delete;
  LogToFile& operator=(const LogToFile&) = delete;
  std::uint64_t bytes() {
    file_.flush();
    return static_cast<std::uint64_t>(std::max<std::streamoff>(0, file_.tellp()));
  }

 private:
  std::ofstream file_;
  const std::string before_;
};

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
std::uint64_t buffer_of(int fd, int option) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  ::getsockopt(fd, SOL_SOCKET, option, &bytes, &size);
  return static_cast<std::uint64_t>(std::max(bytes, 0) / 2);
}

Result<std::unique_ptr<TcpChannel>> channel_over(Descriptor fd, StreamSide side) {
  if (::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
    return make_error(ErrorCode::kIo, "a socket stays blocking: {}", system_message(errno));
  }
  disable_nagle(fd.get());
  BF_ASSIGN_OR_RETURN(auto stream, make_stream(std::move(fd), {}, side));
  return std::make_unique<TcpChannel>(std::move(stream), side == StreamSide::kClient ? "receiver" : "sender",
                                      TcpOptions{});
}

/// The bytes that travel.
Result<Payload> serialise(Serialisation way, const Payload& gradient) {
  if (way == Serialisation::kFrame) return gradient;
  if (way == Serialisation::kCopy) {
    BF_ASSIGN_OR_RETURN(Payload copy, allocate_payload(gradient.bytes.size()));
    std::memcpy(copy.bytes.data(), gradient.bytes.data(), gradient.bytes.size());
    return copy;
  }
  google::protobuf::BytesValue message;
  message.set_value(gradient.bytes.data(), gradient.bytes.size());
  BF_ASSIGN_OR_RETURN(Payload packed, allocate_payload(message.ByteSizeLong()));
  if (message.SerializeToArray(packed.bytes.data(), static_cast<int>(packed.bytes.size()))) return packed;
  return make_error(ErrorCode::kBadData, "{} bytes are no message", packed.bytes.size());
}

/// Floats again: where the frame left them, or in `into`. Errors: kBadData where they are not the gradient's size.
Result<ByteSpan> deserialise(Serialisation way, const Payload& packed, MutableByteSpan into) {
  if (way == Serialisation::kFrame) return ByteSpan(packed.bytes);
  google::protobuf::BytesValue message;
  ByteSpan bytes = packed.bytes;
  if (way == Serialisation::kProtobuf) {
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return make_error(ErrorCode::kBadData, "{} bytes are no message", bytes.size());
    }
    bytes = std::as_bytes(std::span(message.value()));
  }
  if (bytes.size() != into.size()) {
    return make_error(ErrorCode::kBadData, "{} bytes came, expected {}", bytes.size(), into.size());
  }
  std::memcpy(into.data(), bytes.data(), bytes.size());
  return ByteSpan(into);
}

double since(std::uint64_t begin) {
  return static_cast<double>(trace::now_ns() - begin) * 1e-9;
}

/// Until the sender says that it is over. Every epoch is answered.
Status receive_epochs(TcpChannel& channel, Serialisation way, const Payload& gradient, NodeUse& use) {
  BF_ASSIGN_OR_RETURN(const Payload into, allocate_payload(gradient.bytes.size()));
  std::ranges::fill(into.bytes, std::byte{1});
  std::uint64_t begin = trace::now_ns();
  double cpu = process_cpu_s();
  while (true) {
    BF_ASSIGN_OR_RETURN(const Message message, channel.receive(nullptr, after_ms(kTableTimeoutMs)));
    const auto kind = static_cast<MessageKind>(message.type);
    if (kind == MessageKind::kEnd) break;
    if (kind == MessageKind::kEpochEnd) {
      log().info("epoch {} is over", message.tag);
      BF_TRY(channel.send({.type = message.type}, after_ms(kTableTimeoutMs)));
      continue;
    }
    const std::uint64_t unpacking = trace::now_ns();
    BF_ASSIGN_OR_RETURN(const ByteSpan floats, deserialise(way, message.payload, into.bytes));
    const double unpacked_s = since(unpacking);
    if (kind == MessageKind::kWarmUp) {
      if (!std::ranges::equal(floats, gradient.bytes)) {
        return make_error(ErrorCode::kBadData, "a gradient came out of a connection other than it went in");
      }
      begin = trace::now_ns();
      cpu = process_cpu_s();
      continue;
    }
    use.serialise_s += unpacked_s;
    ++use.messages;
    log().debug("gradient {} of {} bytes came", message.tag, message.payload.bytes.size());
  }
  use.seconds = since(begin);
  use.cpu_s = process_cpu_s() - cpu;
  use.wire_bytes = channel.stats().bytes_received;
  return {};
}

Status send_gradient(TcpChannel& channel, MessageKind kind, std::uint64_t tag, Payload payload) {
  Message message{.type = static_cast<std::uint16_t>(kind), .tag = tag};
  message.payload = std::move(payload);
  return channel.send(std::move(message), after_ms(kTableTimeoutMs));
}

/// Epochs until enough; a gradient before them is not counted.
Status send_epochs(TcpChannel& channel, const WireCommand& command, const TableRow& row, const Payload& gradient,
                   NodeUse& use) {
  BF_ASSIGN_OR_RETURN(Payload first, serialise(row.serialisation, gradient));
  BF_TRY(send_gradient(channel, MessageKind::kWarmUp, 0, std::move(first)));
  BF_TRY(send_gradient(channel, MessageKind::kEpochEnd, 0, {}));
  BF_TRY(channel.receive(nullptr, after_ms(kTableTimeoutMs)));
  const std::uint64_t begin = trace::now_ns();
  const double cpu = process_cpu_s();
  const std::uint64_t before = channel.stats().bytes_sent;
  for (int epoch = 0; command.seconds > 0 ? since(begin) < command.seconds : epoch < command.epochs; ++epoch) {
    if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
    for (int i = 0; i < command.messages; ++i) {
      const std::uint64_t packing = trace::now_ns();
      BF_ASSIGN_OR_RETURN(Payload packed, serialise(row.serialisation, gradient));
      use.serialise_s += since(packing);
      log().debug("gradient {} of {} bytes goes", use.messages, packed.bytes.size());
      BF_TRY(send_gradient(channel, MessageKind::kGradient, use.messages, std::move(packed)));
      ++use.messages;
    }
    BF_TRY(send_gradient(channel, MessageKind::kEpochEnd, static_cast<std::uint64_t>(epoch), {}));
    BF_TRY(channel.receive(nullptr, after_ms(kTableTimeoutMs)));
    log().info("epoch {} is over", epoch);
  }
  use.seconds = since(begin);
  use.cpu_s = process_cpu_s() - cpu;
  use.wire_bytes = channel.stats().bytes_sent - before;
  return send_gradient(channel, MessageKind::kEnd, 0, {});
}

/// The receiving node, a process of its own; killed and waited for, whatever happens.
class ReceiverProcess {
 public:
  explicit ReceiverProcess(pid_t process) : process_(process) {}
  ~ReceiverProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ReceiverProcess(const ReceiverProcess&) = delete;
  ReceiverProcess& operator=(const ReceiverProcess&) = delete;

 private:
  pid_t process_;
};

[[noreturn]] void be_receiver(Descriptor fd, const TableRow& row, const Payload& gradient,
                              const TemporaryFolder& folder, int answer) {
  NodeUse use;
  const Status status = [&]() -> Status {
    LogToFile lines(folder.file("receiver.log"), row.log);
    use.socket_buffer = buffer_of(fd.get(), SO_RCVBUF);
    BF_ASSIGN_OR_RETURN(const auto channel, channel_over(std::move(fd), StreamSide::kServer));
    BF_TRY(receive_epochs(*channel, row.serialisation, gradient, use));
    use.log_bytes = lines.bytes();
    use.ok = true;
    return {};
  }();
  if (!status) std::fprintf(stderr, "receiver: %s\n", status.error().message.c_str());
  const bool told = ::write(answer, &use, sizeof(use)) == static_cast<ssize_t>(sizeof(use));
  ::_exit(use.ok && told ? 0 : 1);
}

void add_use(NodeUse& sum, const NodeUse& use) {
  sum.seconds += use.seconds;
  sum.cpu_s += use.cpu_s;
  sum.serialise_s += use.serialise_s;
  sum.messages += use.messages;
  sum.wire_bytes += use.wire_bytes;
  sum.log_bytes += use.log_bytes;
  sum.socket_buffer = use.socket_buffer;
}

/// One round of one row. Buffers are set before the connection is made, since that decides the window.
Status measure_table_row(const WireCommand& command, const Payload& gradient, const TemporaryFolder& folder,
                         TableRow& row) {
  BF_ASSIGN_OR_RETURN(const auto addresses, resolve("127.0.0.1:0", after_ms(1000)));
  BF_ASSIGN_OR_RETURN(Descriptor listening, listen_on(addresses.front(), "127.0.0.1:0"));
  set_buffers(listening, row.buffer);  // what it accepts inherits them
  BF_ASSIGN_OR_RETURN(const SocketAddress bound, bound_address(listening));
  Descriptor near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_buffers(near, row.buffer);
  if (::connect(near.get(), bound.get(), bound.length) != 0) {
    return make_error(ErrorCode::kUnavailable, "cannot connect to a socket of our own: {}", system_message(errno));
  }
  Descriptor far(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!far.valid()) return make_error(ErrorCode::kUnavailable, "cannot accept: {}", system_message(errno));
  listening = Descriptor();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return make_error(ErrorCode::kIo, "no pipe: {}", system_message(errno));
  const Descriptor answer(ends[0]);
  Descriptor question(ends[1]);
  std::fflush(nullptr);
  const pid_t process = ::fork();
  if (process < 0) return make_error(ErrorCode::kIo, "the receiver got no process: {}", system_message(errno));
  if (process == 0) {
    near = Descriptor();  // so that the connection ends with the sender
    be_receiver(std::move(far), row, gradient, folder, question.get());
  }
  const ReceiverProcess receiver(process);
  question = Descriptor();
  far = Descriptor();
  NodeUse sender, receiver_use;
  sender.socket_buffer = buffer_of(near.get(), SO_SNDBUF);
  {
    LogToFile lines(folder.file("sender.log"), row.log);
    BF_ASSIGN_OR_RETURN(const auto channel, channel_over(std::move(near), StreamSide::kClient));
    channel->compress({.mode = row.codec, .element_bytes = sizeof(float)});
    BF_TRY(send_epochs(*channel, command, row, gradient, sender));
    sender.log_bytes = lines.bytes();
  }
  if (::read(answer.get(), &receiver_use, sizeof(receiver_use)) != static_cast<ssize_t>(sizeof(receiver_use)) ||
      !receiver_use.ok) {
    return make_error(ErrorCode::kUnavailable, "the receiver ended without an answer");
  }
  if (receiver_use.messages != sender.messages) {
    return make_error(ErrorCode::kBadData, "{} gradients went, {} came", sender.messages, receiver_use.messages);
  }
  const double bytes = static_cast<double>(gradient.bytes.size()) * static_cast<double>(sender.messages);
  row.gb_per_s.push_back(bytes / sender.seconds * 1e-9);
  row.ratio = bytes / static_cast<double>(sender.wire_bytes);
  add_use(row.sender, sender);
  add_use(row.receiver, receiver_use);
  return {};
}

Compression codec_named(const std::string& name) {
  return name == "lz4" ? Compression::kLz4 : name == "zstd" ? Compression::kZstd : Compression::kOff;
}

std::vector<TableRow> table_rows(const WireCommand& command) {
  std::vector<TableRow> rows;
  for (std::size_t way = 0; way < kSerialisationNames.size(); ++way) {
    if (std::ranges::count(command.serialisations, kSerialisationNames[way]) == 0) continue;
    for (const std::string& codec : command.codecs) {
      for (const int buffer : command.buffers) {
        for (const std::string& log : command.logs) {
          rows.push_back({.serialisation = static_cast<Serialisation>(way),
                          .codec = codec_named(codec),
                          .buffer = buffer,
                          .log = log});
        }
      }
    }
  }
  return rows;
}

/// Of a CPU second what each GB took.
double cpu_s_per_gb(const NodeUse& use, const WireCommand& command) {
  return use.cpu_s / (static_cast<double>(use.messages) * static_cast<double>(command.bytes) * 1e-9);
}

double serialise_ms(const NodeUse& use) {
  return use.serialise_s / static_cast<double>(use.messages) * 1e3;
}

void print_wire_table(const std::vector<TableRow>& rows, const WireCommand& command) {
  std::printf("gradients of %zu bytes, GB/s of them; each node: ms to make or read a message, CPU seconds for a GB\n\n",
              command.bytes);
  std::printf(
      "| serialisation | codec | buffer | log | GB/s, median (spread) | ratio | sender ms | CPU s/GB | receiver ms | "
      "CPU s/GB | log bytes |\n|---|---|--:|---|--:|--:|--:|--:|--:|--:|--:|\n");
  for (const TableRow& row : rows) {
    const auto [least, most] = std::ranges::minmax(row.gb_per_s);
    std::printf("| %s | %s | %d | %s | %.2f (%.2f-%.2f) | %.3f | %.3f | %.2f | %.3f | %.2f | %llu |\n",
                kSerialisationNames[static_cast<std::size_t>(row.serialisation)],
                std::string(to_string(row.codec)).c_str(), row.buffer, row.log.c_str(), median(row.gb_per_s), least,
                most, row.ratio, serialise_ms(row.sender), cpu_s_per_gb(row.sender, command),
                serialise_ms(row.receiver), cpu_s_per_gb(row.receiver, command),
                static_cast<unsigned long long>(row.sender.log_bytes + row.receiver.log_bytes));
  }
}

nlohmann::ordered_json node_json(const char* name, const NodeUse& use, const WireCommand& command) {
  return {{"name", name},
          {"seconds", use.seconds},
          {"cpu_s_per_gb", cpu_s_per_gb(use, command)},
          {"serialise_ms", serialise_ms(use)},
          {"messages", use.messages},
          {"wire_bytes", use.wire_bytes},
          {"log_bytes", use.log_bytes},
          {"socket_buffer", use.socket_buffer}};
}

nlohmann::ordered_json table_row_json(const TableRow& row, const WireCommand& command) {
  nlohmann::ordered_json j{{"serialisation", kSerialisationNames[static_cast<std::size_t>(row.serialisation)]},
                           {"codec", to_string(row.codec)},
                           {"buffer", row.buffer},
                           {"log", row.log},
                           {"bytes", command.bytes},
                           {"gb_per_s", row.gb_per_s},
                           {"ratio", row.ratio}};
  j["nodes"] = {node_json("sender", row.sender, command), node_json("receiver", row.receiver, command)};
  return j;
}

}  // namespace

Status measure_wire_table(const WireCommand& command, nlohmann::ordered_json& all) {
  BF_ASSIGN_OR_RETURN(const Payload gradient, make_gradient(command.bytes));
  BF_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create());
  std::vector<TableRow> rows = table_rows(command);
  for (int round = 0; round < command.rounds; ++round) {
    for (TableRow& row : rows) BF_TRY(measure_table_row(command, gradient, folder, row));
  }
  if (!command.json) print_wire_table(rows, command);
  for (const TableRow& row : rows) all.push_back(table_row_json(row, command));
  return {};
}

}  // namespace butterfly::app
