// Two endpoints of a loopback connection for `butterfly bench wire`: channels of this program, or plain sockets and
// nothing else. Each end belongs to one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "butterfly/wire/channel/byte_stream.h"

namespace butterfly::app {

enum class Engine { kRaw, kPlain, kTls };
enum class Waiting { kSpin, kBlock, kDefault };

std::string_view to_string(Engine engine);
std::string_view to_string(Waiting waiting);

/// Sends and receives messages of sizes that both endpoints know.
class End {
 public:
  virtual ~End() = default;
  virtual Status send(std::size_t bytes) = 0;
  virtual Status receive(std::size_t bytes) = 0;
  virtual StreamCopies copies() const = 0;
  virtual ChannelStats stats() const = 0;
};

struct Endpoints {
  std::unique_ptr<End> near, far;
};

/// `folder` is where a cluster is made when TLS is asked for. Errors: those of listening and connecting.
Result<Endpoints> make_endpoints(Engine engine, Waiting waiting, std::size_t bytes_max, const std::string& folder);

}  // namespace butterfly::app
