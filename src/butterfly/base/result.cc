#include "butterfly/base/result.h"

namespace butterfly {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kIo:
      return "input/output error";
    case ErrorCode::kBadData:
      return "bad data";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNoMemory:
      return "not enough memory";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kProtocol:
      return "protocol error";
    case ErrorCode::kCancelled:
      return "cancelled";
  }
  return "unknown error";
}

}  // namespace butterfly
