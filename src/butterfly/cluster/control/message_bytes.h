// Messages as the bytes of a frame's meta part, and back. protobuf's own complaints go nowhere: what is wrong is an
// error of the caller. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace butterfly {

/// Errors: kInvalidArgument for text that is not UTF-8, naming the `peer` that would have got it.
Result<std::vector<std::byte>> write_message(const google::protobuf::MessageLite& message, const std::string& peer);

/// False for bytes that are no such message, or have text that is not UTF-8.
bool read_message(ByteSpan bytes, google::protobuf::MessageLite& message);

}  // namespace butterfly
