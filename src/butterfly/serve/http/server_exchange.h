// One HTTP request and its answer over libmicrohttpd: whom the daemon asks, and whom handlers answer. An exchange may
// outlive its connection and its server; all of it is thread-safe but the request, which does not change once it is
// whole.
#pragma once

#include <microhttpd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/serve/http/http_server.h"

namespace butterfly {

using HttpClock = std::chrono::steady_clock;

/// Of all requests that are there.
struct HttpBodies {
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> freed_large{false};
};

/// What a connection is doing, for the thread that watches the clock.
struct HttpConnection {
  enum class Phase : std::uint8_t { kHead, kBody, kAnswer };
  int socket = -1;
  Phase phase = Phase::kHead;
  HttpClock::time_point since = HttpClock::now();
  std::weak_ptr<class ServerExchange> exchange{};
};

/// What an exchange wants of its server.
class ExchangeHost {
 public:
  virtual ~ExchangeHost() = default;
  virtual const HttpOptions& options() const = 0;
  virtual bool stopping() const = 0;
  /// Whether bodies of all requests together have room for so much more, which is counted then.
  virtual bool count_body(std::size_t bytes) = 0;
  virtual void set_phase(HttpConnection* connection, HttpConnection::Phase phase,
                         const std::shared_ptr<ServerExchange>& exchange) = 0;
  virtual void exchange_ended() = 0;
};

class ServerExchange final : public HttpExchange {
 public:
  ServerExchange(ExchangeHost& host, std::shared_ptr<HttpBodies> all_bodies, MHD_Connection* connection,
                 HttpConnection* state)
      : host_(host), all_bodies_(std::move(all_bodies)), connection_(connection), state_(state) {}
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
  HttpConnection* state() const { return state_; }
  ssize_t read_piece(char* out, std::size_t size);
  static MHD_Result add_header(void* to, MHD_ValueKind kind, const char* name, const char* value);

 private:
  void resume_locked();
  MHD_Result send_locked();

  ExchangeHost& host_;
  const std::shared_ptr<HttpBodies> all_bodies_;  // shared: an exchange may outlive the server
  std::mutex mutex_;  // guards all below but the request, which does not change once it is whole
  MHD_Connection* connection_;
  HttpConnection* const state_;
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

}  // namespace butterfly
