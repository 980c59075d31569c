#include "butterfly/cluster/control/message_bytes.h"

#include <google/protobuf/message_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <limits>

namespace butterfly {
namespace {

thread_local bool protobuf_complained = false;

/// protobuf writes to stderr of text that is not UTF-8, and sends it nevertheless.
void listen_to_protobuf() {
  static const auto before = google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string&) { protobuf_complained = true; });
  (void)before;
  protobuf_complained = false;
}

}  // namespace

Result<std::vector<std::byte>> write_message(const google::protobuf::MessageLite& message, const std::string& peer) {
  listen_to_protobuf();
  std::vector<std::byte> bytes(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(bytes.data()));
  if (protobuf_complained) {
    return make_error(ErrorCode::kInvalidArgument, "a message to {} has a name that is not UTF-8", peer);
  }
  return bytes;
}

bool read_message(ByteSpan bytes, google::protobuf::MessageLite& message) {
  listen_to_protobuf();
  return bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()) &&
         message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace butterfly
