// butterfly study watch: what a server does now, from its own counts.
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/read_file.h"
#include "study/study.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kMetricsBytesMax = 4 << 20;
constexpr int kTimeoutSeconds = 5;

struct WatchCommand {
  std::string address;
  double every_s = 1.0;
  int lines = 0;
};

using Metrics = std::map<std::string, double>;

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

Result<Descriptor> connect_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return make_error(ErrorCode::kInvalidArgument, "\"{}\" is no HOST:PORT", address);
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string port = address.substr(colon + 1);
  const addrinfo hints{.ai_flags = 0,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  AddressList found;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found.first);
  if (failed != 0) return make_error(ErrorCode::kUnavailable, "{}: {}", address, ::gai_strerror(failed));
  int reason = 0;
  for (const addrinfo* at = found.first; at != nullptr; at = at->ai_next) {
    Descriptor socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    const timeval limit{.tv_sec = kTimeoutSeconds, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return socket;
    reason = errno;
  }
  return make_error(ErrorCode::kUnavailable, "{}: {}", address, std::strerror(reason));
}

/// Sums over labels; histograms are left out.
Metrics parse_metrics(const std::string& text) {
  Metrics metrics;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    const std::size_t space = line.rfind(' ');
    if (!line.starts_with("butterfly_") || space == std::string_view::npos) continue;
    double value = 0.0;
    const std::string_view number = line.substr(space + 1);
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc{}) continue;
    metrics[std::string(line.substr(0, std::min(line.find('{'), space)))] += value;
  }
  return metrics;
}

Result<Metrics> ask(const std::string& address) {
  BF_ASSIGN_OR_RETURN(const Descriptor socket, connect_to(address));
  const std::string question = fmt::format("GET /metrics HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", address);
  if (::send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(question.size())) {
    return make_error(ErrorCode::kUnavailable, "{}: {}", address, std::strerror(errno));
  }
  BF_ASSIGN_OR_RETURN(const std::string answer, read_to_end(socket, address, kMetricsBytesMax));
  const std::string status = answer.substr(0, answer.find('\r'));
  const std::size_t body = answer.find("\r\n\r\n");
  if (status.find(" 200") == std::string::npos || body == std::string::npos) {
    return make_error(ErrorCode::kProtocol,
                      "{} answered \"{}\" instead of metrics: is a butterfly serve there, without "
                      "TLS?",
                      address, status.substr(0, 80));
  }
  Metrics metrics = parse_metrics(answer.substr(body + 4));
  if (!metrics.contains("butterfly_steps_total")) {
    return make_error(ErrorCode::kProtocol, "{}: its metrics have no butterfly_steps_total", address);
  }
  return metrics;
}

std::string line_of(const Metrics& before, const Metrics& now, double seconds) {
  const auto value = [&now](const char* name) {
    const auto found = now.find(name);
    return found == now.end() ? 0.0 : found->second;
  };
  const auto growth = [&](const char* name) {
    const auto found = before.find(name);
    return std::max(0.0, value(name) - (found == before.end() ? 0.0 : found->second));
  };
  const double steps = growth("butterfly_steps_total"), rows = growth("butterfly_rows_total");
  return fmt::format(
      "{:>8.0f} {:>8.0f} {:>9.1f} {:>9.1f} {:>10.1f} {:>13.1f} {:>7.1f} % {:>7.1f} %\n",
      value("butterfly_requests_running"), value("butterfly_requests_waiting"), steps / seconds, rows / seconds,
      steps > 0.0 ? rows / steps : 0.0, growth("butterfly_generated_tokens_total") / seconds,
      std::min(100.0, 100 * growth("butterfly_busy_seconds_total") / seconds), 100 * value("butterfly_cache_used"));
}

Result<int> run_watch(const WatchCommand& command) {
  using Clock = std::chrono::steady_clock;
  BF_ASSIGN_OR_RETURN(Metrics before, ask(command.address));
  Clock::time_point at = Clock::now();
  std::mutex mutex;
  std::condition_variable_any wake;
  const std::stop_token stop = interrupted();
  for (int shown = 0; command.lines == 0 || shown < command.lines; ++shown) {
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, std::chrono::duration<double>(command.every_s), [] { return false; });
    if (stop.stop_requested()) return kExitOk;
    BF_ASSIGN_OR_RETURN(Metrics now, ask(command.address));
    const double seconds = std::chrono::duration<double>(Clock::now() - at).count();
    at = Clock::now();
    if (shown % 20 == 0) {
      std::printf(" running  waiting   steps/s    rows/s  rows/step  finished t/s      busy     cache\n");
    }
    std::printf("%s", line_of(before, now, seconds).c_str());
    std::fflush(stdout);
    before = std::move(now);
  }
  return kExitOk;
}

}  // namespace

void add_study_watch(Command study, Action& action) {
  auto sub = study.add_subcommand("watch", "What a running server does, line by line");
  auto command = std::make_shared<WatchCommand>();
  sub.add_option("address", command->address, "HOST:PORT of butterfly serve, without TLS").required();
  sub.add_option("--every", command->every_s, "Seconds between lines").in_range(0.1, 3600.0).show_default();
  sub.add_option("--lines", command->lines, "End after this number of lines; 0: with Ctrl-C")
      .in_range(0, 1 << 30)
      .show_default();
  sub.footer(
      "Texts being computed and waiting; steps of the pipeline each second and their rows (tokens of prompts and of\n"
      "answers); tokens of answers that were finished; the share of time with a step under way, and of the cache in "
      "use.\n"
      "All are the server's own counts "
      "(GET /metrics). Where the time of its steps goes: study run -- serve ...");
  run_later(sub, action, [command] { return run_watch(*command); });
}

}  // namespace butterfly::app
