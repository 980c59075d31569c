#include "butterfly/serve/http/http_server.h"

#include <malloc.h>
#include <microhttpd.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/log.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/address.h"

namespace butterfly {
namespace {

using HttpClock = std::chrono::steady_clock;

constexpr std::size_t kConnectionBytes = std::size_t{24} << 10;  // of one connection: its headers, what it sends
constexpr std::size_t kPieceBytes = std::size_t{16} << 10;       // of a stream, read at once
constexpr std::size_t kDrainBytes = std::size_t{128} << 20;      // of a body that is too large, before the answer
constexpr int kSendBufferBytes = 256 << 10;                      // of the system, for a client that reads slowly
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;        // of a body, whose memory goes back to the system
constexpr auto kWatchEvery = std::chrono::milliseconds(200);

class Daemon;

/// Of all requests that are there.
struct Bodies {
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> freed_large{false};
};

/// What a connection is doing, for the thread that watches the clock.
struct Connection {
  enum class Phase : std::uint8_t { kHead, kBody, kAnswer };
  int socket = -1;
  Phase phase = Phase::kHead;
  HttpClock::time_point since = HttpClock::now();
  std::weak_ptr<class ServerExchange> exchange{};
};

class ServerExchange final : public HttpExchange {
 public:
  ServerExchange(Daemon& daemon, std::shared_ptr<Bodies> all_bodies, MHD_Connection* connection, Connection* state)
      : daemon_(daemon), all_bodies_(std::move(all_bodies)), connection_(connection), state_(state) {}
  ~ServerExchange() override;

  const HttpRequest& request() const override { return request_; }
  Refusal refusal() const override { return refusal_; }
  void answer(HttpAnswer answer) override;
  void stream(int status, HttpHeaders headers, std::shared_ptr<HttpSource> source) override;
  void wake() override;
  void abandon() override;
  void on_end(std::function<void(const HttpEnd& end)> ended) override;

  /// Everything below: by the daemon.
  MHD_Result begin(const char* method, const char* path);
  MHD_Result take_body(const char* data, std::size_t size);
  /// The request is whole: hands it to the handler, or sends what it has answered.
  MHD_Result proceed();
  void completed(bool delivered);
  void hang_up();
  bool is_suspended();
  void show_life(HttpClock::time_point now);
  Connection* state() const { return state_; }
  ssize_t read_piece(char* out, std::size_t size);
  static MHD_Result add_header(void* to, MHD_ValueKind kind, const char* name, const char* value);

 private:
  void resume_locked();
  MHD_Result send_locked();

  Daemon& daemon_;
  const std::shared_ptr<Bodies> all_bodies_;  // shared: an exchange may outlive the server
  std::mutex mutex_;  // guards all below but the request, which does not change once it is whole
  MHD_Connection* connection_;
  Connection* const state_;
  HttpRequest request_;
  Refusal refusal_ = Refusal::kNone;
  std::size_t counted_bytes_ = 0;  // of the body, within the limit of all
  std::size_t received_ = 0;
  bool handed_over_ = false;
  bool suspended_ = false;
  bool woken_ = false;
  bool gone_ = false;
  std::optional<HttpAnswer> answer_;
  std::shared_ptr<HttpSource> source_;
  std::string piece_;  // of the source, not yet sent
  std::size_t piece_sent_ = 0;
  HttpClock::time_point piece_since_ = HttpClock::now();
  bool shows_life_ = false;
  bool source_ended_ = false;
  std::optional<HttpEnd> ended_;
  std::vector<std::function<void(const HttpEnd&)>> on_end_;
};

using ExchangeHolder = std::shared_ptr<ServerExchange>;

class Daemon final : public HttpServer {
 public:
  Daemon(const HttpOptions& options, Handler handler, IsQuick is_quick)
      : options_(options), handler_(std::move(handler)), is_quick_(std::move(is_quick)) {}
  ~Daemon() override { stop(); }

  Status start();
  std::string address() const override { return address_; }
  unsigned connections() const override { return open_; }
  bool wait_until_idle(std::chrono::milliseconds timeout) override;

  const HttpOptions& options() const { return options_; }
  bool stopping() const { return stopping_; }
  void dispatch(const ExchangeHolder& exchange);
  bool count_body(std::size_t bytes);
  void set_phase(Connection* connection, Connection::Phase phase, const ExchangeHolder& exchange);
  void exchange_began() { ++exchanges_; }
  void exchange_ended();

 private:
  static MHD_Result on_access(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char* version, const char* data, std::size_t* size, void** context);
  static void on_completed(void* self, MHD_Connection* connection, void** context, MHD_RequestTerminationCode code);
  static void on_connection(void* self, MHD_Connection* connection, void** context,
                            MHD_ConnectionNotificationCode code);
  Result<Descriptor> listen();
  void work();
  void watch();
  void watch_once();
  std::chrono::seconds time_for(Connection::Phase phase) const {
    return phase == Connection::Phase::kHead ? options_.idle_timeout : options_.body_timeout;
  }
  void stop();

  const HttpOptions options_;
  const Handler handler_;
  const IsQuick is_quick_;
  std::string address_;
  MHD_Daemon* daemon_ = nullptr;
  std::atomic<unsigned> open_{0};
  const std::shared_ptr<Bodies> bodies_ = std::make_shared<Bodies>();
  std::atomic<bool> stopping_{false};

  std::mutex connections_mutex_;  // guards connections_ and what they say; taken before an exchange's
  std::unordered_set<Connection*> connections_;

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

ServerExchange::~ServerExchange() {
  all_bodies_->bytes -= counted_bytes_;
  if (counted_bytes_ >= kLargeBytes) all_bodies_->freed_large = true;
}

MHD_Result ServerExchange::add_header(void* to, MHD_ValueKind kind, const char* name, const char* value) {
  auto& request = *static_cast<HttpRequest*>(to);
  if (kind == MHD_GET_ARGUMENT_KIND) {
    request.query[name] = value != nullptr ? value : "";
    return MHD_YES;
  }
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  request.headers[lower] = value != nullptr ? value : "";
  return MHD_YES;
}

MHD_Result ServerExchange::begin(const char* method, const char* path) {
  request_.method = method;
  request_.path = path;
  MHD_get_connection_values(connection_, MHD_HEADER_KIND, &ServerExchange::add_header, &request_);
  MHD_get_connection_values(connection_, MHD_GET_ARGUMENT_KIND, &ServerExchange::add_header, &request_);
  std::size_t length = 0;
  const std::string& told = request_.header("content-length");
  std::from_chars(told.data(), told.data() + told.size(), length);
  if (length <= daemon_.options().body_bytes_max) return MHD_YES;
  refusal_ = Refusal::kBodyTooLarge;
  // A client that asks first, or that has more than is worth waiting for, is told at once.
  if (length <= kDrainBytes && request_.header("expect").empty()) return MHD_YES;
  handed_over_ = true;
  daemon_.set_phase(state_, Connection::Phase::kAnswer, {});
  return MHD_YES;
}

MHD_Result ServerExchange::take_body(const char* data, std::size_t size) {
  received_ += size;
  if (received_ > std::max(kDrainBytes, daemon_.options().body_bytes_max)) return MHD_NO;
  if (refusal_ != Refusal::kNone) return MHD_YES;
  if (received_ > daemon_.options().body_bytes_max) {
    refusal_ = Refusal::kBodyTooLarge;
  } else if (!daemon_.count_body(size)) {
    refusal_ = Refusal::kTooManyBodies;
  } else {
    counted_bytes_ += size;
    request_.body.append(data, size);
    return MHD_YES;
  }
  request_.body = {};
  all_bodies_->bytes -= std::exchange(counted_bytes_, 0);
  all_bodies_->freed_large = true;
  return MHD_YES;
}

MHD_Result ServerExchange::proceed() {
  const std::lock_guard lock(mutex_);
  if (gone_ || daemon_.stopping()) return MHD_NO;
  if (answer_) return send_locked();
  MHD_suspend_connection(connection_);
  suspended_ = true;
  return MHD_YES;
}

void ServerExchange::resume_locked() {
  if (!suspended_ || connection_ == nullptr) return;
  suspended_ = false;
  MHD_resume_connection(connection_);
}

void ServerExchange::answer(HttpAnswer answer) {
  const std::lock_guard lock(mutex_);
  if (answer_) return;
  answer_ = std::move(answer);
  resume_locked();
}

void ServerExchange::stream(int status, HttpHeaders headers, std::shared_ptr<HttpSource> source) {
  const std::lock_guard lock(mutex_);
  if (answer_) return;
  source_ = std::move(source);
  answer_ = HttpAnswer{.status = status, .headers = std::move(headers)};
  resume_locked();
}

void ServerExchange::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  if (source_) resume_locked();
}

void ServerExchange::hang_up() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  resume_locked();
}

void ServerExchange::abandon() {
  hang_up();
  // A client that does not read is waited for; that ends here.
  const std::lock_guard lock(mutex_);
  if (connection_ != nullptr) ::shutdown(state_->socket, SHUT_RDWR);
}

bool ServerExchange::is_suspended() {
  const std::lock_guard lock(mutex_);
  return suspended_ && !gone_;
}

void ServerExchange::show_life(HttpClock::time_point now) {
  const auto every = daemon_.options().keep_alive;
  const std::lock_guard lock(mutex_);
  if (!source_ || !suspended_ || gone_ || every.count() == 0 || now - piece_since_ < every) return;
  shows_life_ = true;
  resume_locked();
}

void ServerExchange::on_end(std::function<void(const HttpEnd& end)> ended) {
  std::optional<HttpEnd> already;
  {
    const std::lock_guard lock(mutex_);
    already = ended_;
    if (!already) on_end_.push_back(std::move(ended));
  }
  if (already) ended(*already);
}

void ServerExchange::completed(bool delivered) {
  std::vector<std::function<void(const HttpEnd&)>> ended;
  HttpEnd end;
  {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
    suspended_ = false;
    end = {.delivered = delivered && !gone_ && answer_, .status = answer_ ? answer_->status : 0};
    gone_ = true;
    ended_ = end;
    ended = std::exchange(on_end_, {});
    source_ = nullptr;
  }
  for (const auto& each : ended) each(end);
  daemon_.exchange_ended();
}

ssize_t ServerExchange::read_piece(char* out, std::size_t size) {
  while (true) {
    std::shared_ptr<HttpSource> source;
    {
      const std::lock_guard lock(mutex_);
      if (gone_ || daemon_.stopping()) return MHD_CONTENT_READER_END_WITH_ERROR;
      if (piece_sent_ < piece_.size()) {
        const std::size_t count = std::min(size, piece_.size() - piece_sent_);
        std::memcpy(out, piece_.data() + piece_sent_, count);
        piece_sent_ += count;
        return static_cast<ssize_t>(count);
      }
      if (source_ended_) return MHD_CONTENT_READER_END_OF_STREAM;
      piece_.clear();
      piece_sent_ = 0;
      woken_ = false;
      source = source_;
    }
    std::string piece;
    trace::Scope scope(trace::Zone::kTell);
    const HttpSource::State state = source->read(piece, kPieceBytes);
    scope.set_work({.number = 1, .bytes = piece.size()});
    scope.end();
    const std::lock_guard lock(mutex_);
    piece_ = std::move(piece);
    if (state == HttpSource::State::kBroken) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (state == HttpSource::State::kEnd) source_ended_ = true;
    if (std::exchange(shows_life_, false) && piece_.empty() && !source_ended_) piece_ = source->sign_of_life();
    if (!piece_.empty()) piece_since_ = HttpClock::now();
    if (state != HttpSource::State::kWait || !piece_.empty() || woken_) continue;
    if (gone_ || daemon_.stopping()) return MHD_CONTENT_READER_END_WITH_ERROR;
    MHD_suspend_connection(connection_);
    suspended_ = true;
    return 0;
  }
}

MHD_Result ServerExchange::send_locked() {
  MHD_Response* response = nullptr;
  if (source_) {
    const auto read = [](void* self, std::uint64_t, char* out, std::size_t size) {
      return (*static_cast<ExchangeHolder*>(self))->read_piece(out, size);
    };
    const auto release = [](void* self) { delete static_cast<ExchangeHolder*>(self); };
    auto* holder = new ExchangeHolder(state_->exchange.lock());
    if (!*holder) {
      delete holder;
      return MHD_NO;
    }
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kPieceBytes, read, holder, release);
    if (response == nullptr) delete holder;
  } else {
    response = MHD_create_response_from_buffer(answer_->body.size(), answer_->body.data(), MHD_RESPMEM_MUST_COPY);
  }
  if (response == nullptr) return MHD_NO;
  for (const auto& [name, value] : answer_->headers) MHD_add_response_header(response, name.c_str(), value.c_str());
  if (refusal_ != Refusal::kNone) MHD_add_response_header(response, "Connection", "close");
  const MHD_Result queued = MHD_queue_response(connection_, static_cast<unsigned>(answer_->status), response);
  MHD_destroy_response(response);
  return queued;
}

MHD_Result Daemon::on_access(void* self, MHD_Connection* connection, const char* url, const char* method, const char*,
                             const char* data, std::size_t* size, void** context) {
  auto& daemon = *static_cast<Daemon*>(self);
  auto* holder = static_cast<ExchangeHolder*>(*context);
  if (holder == nullptr) {
    const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    auto* state = info != nullptr ? static_cast<Connection*>(info->socket_context) : nullptr;
    if (state == nullptr) return MHD_NO;
    holder = new ExchangeHolder(std::make_shared<ServerExchange>(daemon, daemon.bodies_, connection, state));
    *context = holder;
    daemon.exchange_began();
    daemon.set_phase(state, Connection::Phase::kBody, *holder);
    (*holder)->begin(method, url);
    if (state->phase != Connection::Phase::kAnswer) return MHD_YES;
    daemon.set_phase(state, Connection::Phase::kAnswer, *holder);
    daemon.handler_(*holder);  // a refusal: answered at once
    return (*holder)->proceed();
  }
  ServerExchange& exchange = **holder;
  if (*size > 0) {
    const MHD_Result taken = exchange.take_body(data, *size);
    *size = 0;
    return taken;
  }
  if (exchange.state()->phase == Connection::Phase::kBody) {
    daemon.set_phase(exchange.state(), Connection::Phase::kAnswer, *holder);
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
  static_cast<Daemon*>(self)->set_phase((*holder)->state(), Connection::Phase::kHead, {});
  (*holder)->completed(code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
  delete holder;
}

void Daemon::on_connection(void* self, MHD_Connection* connection, void** context,
                           MHD_ConnectionNotificationCode code) {
  auto& daemon = *static_cast<Daemon*>(self);
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    auto* state = new Connection;
    const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != nullptr) state->socket = info->connect_fd;
    *context = state;
    const std::lock_guard lock(daemon.connections_mutex_);
    daemon.connections_.insert(state);
    ++daemon.open_;
    return;
  }
  auto* state = static_cast<Connection*>(*context);
  *context = nullptr;
  if (state == nullptr) return;
  const std::lock_guard lock(daemon.connections_mutex_);
  daemon.connections_.erase(state);
  --daemon.open_;
  delete state;
}

void Daemon::set_phase(Connection* connection, Connection::Phase phase, const ExchangeHolder& exchange) {
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
    for (Connection* connection : connections_) {
      ExchangeHolder exchange;
      if (connection->phase == Connection::Phase::kAnswer) {
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
    for (Connection* connection : connections_) {
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
