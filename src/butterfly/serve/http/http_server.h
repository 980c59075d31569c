// HTTP/1.1 for programs: requests come whole, answers go out whole or as a stream that any thread may feed. Bounds what
// a client can make it hold: connections, bytes of bodies, time. Hides libmicrohttpd. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

struct HttpRequest {
  std::string method{};
  std::string path{};                            // decoded, without the query
  std::map<std::string, std::string> query{};    // decoded
  std::map<std::string, std::string> headers{};  // names in lower case
  std::string body{};

  /// Empty where there is none. `name` in lower case.
  const std::string& header(const std::string& name) const;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpAnswer {
  int status = 200;
  HttpHeaders headers{};
  std::string body{};
};

/// What a streamed answer consists of. Called by one thread at a time.
class HttpSource {
 public:
  enum class State : std::uint8_t { kMore, kWait, kEnd, kBroken };
  virtual ~HttpSource() = default;
  /// Appends up to about `bytes` to `out`. kWait: nothing now, HttpExchange::wake() tells of more; kEnd: nothing more
  /// comes; kBroken: the connection is to be cut, so that the client sees that the answer is not whole.
  virtual State read(std::string& out, std::size_t bytes) = 0;
  /// What is sent to a client that waits long, so that nothing on its way takes the connection for dead; empty:
  /// nothing.
  virtual std::string_view sign_of_life() const { return {}; }
};

/// How an exchange went.
struct HttpEnd {
  bool delivered = false;  // the whole answer was sent; else the client went away before
  int status = 0;          // of the answer; 0: there was none
};

/// A request and the way to answer it.
class HttpExchange {
 public:
  enum class Refusal : std::uint8_t { kNone, kBodyTooLarge, kTooManyBodies };

  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  /// Why the request's body was not kept; the handler answers accordingly.
  virtual Refusal refusal() const = 0;
  /// One of the two, once, from any thread.
  virtual void answer(HttpAnswer answer) = 0;
  virtual void stream(int status, HttpHeaders headers, std::shared_ptr<HttpSource> source) = 0;
  /// The source of stream() has more. From any thread.
  virtual void wake() = 0;
  /// Ends the connection without the rest of the answer.
  virtual void abandon() = 0;
  /// Each is called once, at once where it is over. Short; from a thread of the server.
  virtual void on_end(std::function<void(const HttpEnd& end)> ended) = 0;
};

struct HttpOptions {
  std::string address = "127.0.0.1:8080";  // port 0: any that is free
  std::string certificate{};               // PEM; empty: no TLS
  std::string private_key{};               // PEM
  std::size_t body_bytes_max = std::size_t{16} << 20;
  std::size_t all_bodies_bytes_max = std::size_t{512} << 20;  // that are being received or worked on
  unsigned connections_max = 16'384;
  std::chrono::seconds idle_timeout{75};   // between requests, and for the head of one
  std::chrono::seconds body_timeout{120};  // for a whole body
  std::chrono::seconds write_timeout{60};  // without a byte taken by the client
  std::chrono::seconds keep_alive{15};     // between signs of life to a client that waits; 0: none
  int threads = 4;                         // that call the handler
};

class HttpServer {
 public:
  /// Called on one of the server's threads; may answer later from another.
  using Handler = std::function<void(const std::shared_ptr<HttpExchange>& exchange)>;
  /// Whether a request is answered without delay by the thread that serves all connections: states and counts.
  using IsQuick = std::function<bool(const std::string& path)>;

  /// Errors: kInvalidArgument for the address or the key, kIo where the system refuses it.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, Handler handler, IsQuick is_quick);
  /// Cuts what is left.
  virtual ~HttpServer() = default;

  /// "127.0.0.1:8080".
  virtual std::string address() const = 0;
  virtual unsigned connections() const = 0;
  /// Waits until every exchange is over, at most this long. False where some are not.
  virtual bool wait_until_idle(std::chrono::milliseconds timeout) = 0;
};

}  // namespace butterfly
