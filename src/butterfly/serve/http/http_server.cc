#include "butterfly/serve/http/http_server.h"

#include <malloc.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/log.h"
#include "butterfly/serve/http/server_exchange.h"
#include "butterfly/wire/channel/address.h"

namespace butterfly {
namespace {

constexpr std::size_t kConnectionBytes = std::size_t{24} << 10;  // of one connection: its headers, what it sends
constexpr int kSendBufferBytes = 256 << 10;                      // of the system, for a client that reads slowly
constexpr auto kWatchEvery = std::chrono::milliseconds(200);

class Daemon final : public HttpServer, private ExchangeHost {
 public:
  Daemon(const HttpOptions& options, Handler handler, IsQuick is_quick)
      : options_(options), handler_(std::move(handler)), is_quick_(std::move(is_quick)) {}
  ~Daemon() override { stop(); }

  Status start();
  std::string address() const override { return address_; }
  unsigned connections() const override { return open_; }
  bool wait_until_idle(std::chrono::milliseconds timeout) override;

 private:
  const HttpOptions& options() const override { return options_; }
  bool stopping() const override { return stopping_; }
  bool count_body(std::size_t bytes) override;
  void set_phase(HttpConnection* connection, HttpConnection::Phase phase, const ExchangeHolder& exchange) override;
  void exchange_ended() override;
  static MHD_Result on_access(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char* version, const char* data, std::size_t* size, void** context);
  static void on_completed(void* self, MHD_Connection* connection, void** context, MHD_RequestTerminationCode code);
  static void on_connection(void* self, MHD_Connection* connection, void** context,
                            MHD_ConnectionNotificationCode code);
  Result<Descriptor> listen();
  void dispatch(const ExchangeHolder& exchange);
  void work();
  void watch();
  void watch_once();
  std::chrono::seconds time_for(HttpConnection::Phase phase) const {
    return phase == HttpConnection::Phase::kHead ? options_.idle_timeout : options_.body_timeout;
  }
  void stop();

  const HttpOptions options_;
  const Handler handler_;
  const IsQuick is_quick_;
  std::string address_;
  MHD_Daemon* daemon_ = nullptr;
  std::atomic<unsigned> open_{0};
  const std::shared_ptr<HttpBodies> bodies_ = std::make_shared<HttpBodies>();
  std::atomic<bool> stopping_{false};

  std::mutex connections_mutex_;  // guards connections_ and what they say; taken before an exchange's
  std::unordered_set<HttpConnection*> connections_;

  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<ExchangeHolder> queue_;
  std::vector<std::thread> workers_;

  std::mutex idle_mutex_;
  std::condition_variable idle_changed_;
  std::atomic<int> exchanges_{0};
  std::condition_variable watch_wakes_;
  std::thread watcher_;
};

MHD_Result Daemon::on_access(void* self, MHD_Connection* connection, const char* url, const char* method, const char*,
                             const char* data, std::size_t* size, void** context) {
  auto& daemon = *static_cast<Daemon*>(self);
  auto* holder = static_cast<ExchangeHolder*>(*context);
  if (holder == nullptr) {
    const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    auto* state = info != nullptr ? static_cast<HttpConnection*>(info->socket_context) : nullptr;
    if (state == nullptr) return MHD_NO;
    ExchangeHost& host = daemon;
    holder = new ExchangeHolder(std::make_shared<ServerExchange>(host, daemon.bodies_, connection, state));
    *context = holder;
    ++daemon.exchanges_;
    daemon.set_phase(state, HttpConnection::Phase::kBody, *holder);
    (*holder)->begin(method, url);
    if (state->phase != HttpConnection::Phase::kAnswer) return MHD_YES;
    daemon.set_phase(state, HttpConnection::Phase::kAnswer, *holder);
    daemon.handler_(*holder);  // a refusal: answered at once
    return (*holder)->proceed();
  }
  ServerExchange& exchange = **holder;
  if (*size > 0) {
    const MHD_Result taken = exchange.take_body(data, *size);
    *size = 0;
    return taken;
  }
  if (exchange.state()->phase == HttpConnection::Phase::kBody) {
    daemon.set_phase(exchange.state(), HttpConnection::Phase::kAnswer, *holder);
    if (exchange.refusal() != HttpExchange::Refusal::kNone || daemon.is_quick_(exchange.request().path)) {
      daemon.handler_(*holder);
      return exchange.proceed();
    }
    const MHD_Result result = exchange.proceed();
    if (result == MHD_YES) daemon.dispatch(*holder);
    return result;
  }
  return exchange.proceed();
}

void Daemon::on_completed(void* self, MHD_Connection*, void** context, MHD_RequestTerminationCode code) {
  auto* holder = static_cast<ExchangeHolder*>(*context);
  if (holder == nullptr) return;
  *context = nullptr;
  static_cast<Daemon*>(self)->set_phase((*holder)->state(), HttpConnection::Phase::kHead, {});
  (*holder)->completed(code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
  delete holder;
}

void Daemon::on_connection(void* self, MHD_Connection* connection, void** context,
                           MHD_ConnectionNotificationCode code) {
  auto& daemon = *static_cast<Daemon*>(self);
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    auto* state = new HttpConnection;
    const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != nullptr) state->socket = info->connect_fd;
    *context = state;
    const std::lock_guard lock(daemon.connections_mutex_);
    daemon.connections_.insert(state);
    ++daemon.open_;
    return;
  }
  auto* state = static_cast<HttpConnection*>(*context);
  *context = nullptr;
  if (state == nullptr) return;
  const std::lock_guard lock(daemon.connections_mutex_);
  daemon.connections_.erase(state);
  --daemon.open_;
  delete state;
}

void Daemon::set_phase(HttpConnection* connection, HttpConnection::Phase phase, const ExchangeHolder& exchange) {
  const std::lock_guard lock(connections_mutex_);
  connection->phase = phase;
  connection->since = HttpClock::now();
  connection->exchange = exchange;
}

bool Daemon::count_body(std::size_t bytes) {
  if (bodies_->bytes.fetch_add(bytes) + bytes <= options_.all_bodies_bytes_max) return true;
  bodies_->bytes -= bytes;
  return false;
}

void Daemon::dispatch(const ExchangeHolder& exchange) {
  const std::lock_guard lock(queue_mutex_);
  queue_.push_back(exchange);
  queue_changed_.notify_one();
}

void Daemon::work() {
  while (true) {
    ExchangeHolder exchange;
    {
      std::unique_lock lock(queue_mutex_);
      queue_changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      exchange = std::move(queue_.front());
      queue_.pop_front();
    }
    handler_(exchange);
  }
}

/// libmicrohttpd looks away from connections that sleep, overlooks an end that comes together with data, and knows no
/// deadline for a whole head or body.
void Daemon::watch_once() {
  std::vector<pollfd> sockets;
  std::vector<ExchangeHolder> sleeping;  // null: not handed over yet
  std::vector<ExchangeHolder> gone;
  const auto now = HttpClock::now();
  {
    const std::lock_guard lock(connections_mutex_);
    for (HttpConnection* connection : connections_) {
      ExchangeHolder exchange;
      if (connection->phase == HttpConnection::Phase::kAnswer) {
        exchange = connection->exchange.lock();
        if (!exchange || !exchange->is_suspended()) continue;
      } else if (now - connection->since > time_for(connection->phase)) {
        ::shutdown(connection->socket, SHUT_RDWR);
        continue;
      }
      sockets.push_back({.fd = connection->socket, .events = POLLRDHUP, .revents = 0});
      sleeping.push_back(std::move(exchange));
    }
    if (!sockets.empty() && ::poll(sockets.data(), sockets.size(), 0) > 0) {
      for (std::size_t i = 0; i < sockets.size(); ++i) {
        if ((sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
        int unread = 0;
        if (sleeping[i]) {
          gone.push_back(sleeping[i]);
        } else if (::ioctl(sockets[i].fd, FIONREAD, &unread) == 0 && unread == 0) {
          ::shutdown(sockets[i].fd, SHUT_RDWR);
        }
      }
    }
  }
  for (const ExchangeHolder& exchange : gone) exchange->hang_up();
  for (const ExchangeHolder& exchange : sleeping) {
    if (exchange) exchange->show_life(now);
  }
}

void Daemon::watch() {
  std::unique_lock lock(idle_mutex_);
  while (!stopping_) {
    watch_wakes_.wait_for(lock, kWatchEvery);
    lock.unlock();
    watch_once();
    if (bodies_->freed_large.exchange(false)) ::malloc_trim(0);
    lock.lock();
  }
}

void Daemon::exchange_ended() {
  if (--exchanges_ > 0) return;
  const std::lock_guard lock(idle_mutex_);
  idle_changed_.notify_all();
}

bool Daemon::wait_until_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(idle_mutex_);
  return idle_changed_.wait_for(lock, timeout, [&] { return exchanges_ == 0; });
}

/// Descriptors that connections may have.
unsigned raise_descriptor_limit(unsigned wanted) {
  constexpr rlim_t kOthers = 256;  // files, workers, the log
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = wanted + kOthers;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  const rlim_t room = limit.rlim_cur > 2 * kOthers ? limit.rlim_cur - kOthers : limit.rlim_cur / 2;
  return static_cast<unsigned>(std::min<rlim_t>(wanted, room));
}

Result<Descriptor> Daemon::listen() {
  BF_ASSIGN_OR_RETURN(const auto addresses, resolve(options_.address, after_ms(10'000)));
  const SocketAddress& wanted = addresses.front();
  Descriptor socket(::socket(wanted.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int send_buffer = kSendBufferBytes;  // connections inherit it
  const bool bound = socket.valid() && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                     ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer)) == 0 &&
                     ::bind(socket.get(), wanted.get(), wanted.length) == 0 && ::listen(socket.get(), 4096) == 0;
  if (!bound) {
    return make_error(ErrorCode::kIo, "cannot listen at {}: {}", options_.address, std::strerror(errno));
  }
  SocketAddress actual;
  actual.length = sizeof(actual.storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&actual.storage), &actual.length) == 0) {
    address_ = to_string(actual);
  }
  return socket;
}

Status Daemon::start() {
  BF_ASSIGN_OR_RETURN(Descriptor socket, listen());
  const unsigned connections = raise_descriptor_limit(options_.connections_max);
  std::vector<MHD_OptionItem> items = {
      {MHD_OPTION_LISTEN_SOCKET, socket.get(), nullptr},
      {MHD_OPTION_CONNECTION_LIMIT, static_cast<std::intptr_t>(connections), nullptr},
      {MHD_OPTION_CONNECTION_MEMORY_LIMIT, static_cast<std::intptr_t>(kConnectionBytes), nullptr},
      {MHD_OPTION_CONNECTION_TIMEOUT, static_cast<std::intptr_t>(options_.write_timeout.count()), nullptr},
      {MHD_OPTION_NOTIFY_COMPLETED, reinterpret_cast<std::intptr_t>(&Daemon::on_completed), this},
      {MHD_OPTION_NOTIFY_CONNECTION, reinterpret_cast<std::intptr_t>(&Daemon::on_connection), this},
      {MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, nullptr},
  };
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
  if (!options_.certificate.empty()) {
    flags |= MHD_USE_TLS;
    items.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, const_cast<char*>(options_.certificate.c_str())});
    items.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, const_cast<char*>(options_.private_key.c_str())});
    items.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>("NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2")});
  }
  items.push_back({MHD_OPTION_END, 0, nullptr});
  daemon_ = MHD_start_daemon(flags, 0, nullptr, nullptr, &Daemon::on_access, this, MHD_OPTION_ARRAY, items.data(),
                             MHD_OPTION_END);
  if (daemon_ == nullptr) {
    if (!options_.certificate.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the HTTPS server does not start: certificate and key are no pair of PEM files, or the "
                        "system refuses it a thread");
    }
    return make_error(ErrorCode::kIo, "the HTTP server does not start at {}: {}", address_, std::strerror(errno));
  }
  (void)socket.release();  // the daemon closes it
  for (int i = 0; i < options_.threads; ++i) workers_.emplace_back([this] { work(); });
  watcher_ = std::thread([this] { watch(); });
  return {};
}

void Daemon::stop() {
  if (daemon_ == nullptr) return;
  stopping_ = true;
  {
    const std::scoped_lock lock(queue_mutex_, idle_mutex_);
    queue_changed_.notify_all();
    watch_wakes_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
  watcher_.join();
  std::vector<ExchangeHolder> left;
  {
    const std::lock_guard lock(connections_mutex_);
    for (HttpConnection* connection : connections_) {
      if (ExchangeHolder exchange = connection->exchange.lock()) left.push_back(std::move(exchange));
    }
  }
  for (const ExchangeHolder& exchange : left) exchange->hang_up();
  MHD_stop_daemon(daemon_);
  daemon_ = nullptr;
  queue_.clear();
}

}  // namespace

const std::string& HttpRequest::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, Handler handler, IsQuick is_quick) {
  auto daemon = std::make_unique<Daemon>(options, std::move(handler), std::move(is_quick));
  BF_TRY(daemon->start());
  return std::unique_ptr<HttpServer>(std::move(daemon));
}

}  // namespace butterfly
