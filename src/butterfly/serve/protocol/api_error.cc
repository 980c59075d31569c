#include "butterfly/serve/protocol/api_error.h"

#include "butterfly/base/json.h"

namespace butterfly {

std::string error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string to_json(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json inner = {{"message", error.message}, {"type", error_type(error.status)}};
  inner["param"] = text_or_null(error.param);
  inner["code"] = text_or_null(error.code);
  return dump_json(nlohmann::ordered_json{{"error", std::move(inner)}});
}

HttpAnswer to_answer(const ApiError& error) {
  HttpAnswer answer{.status = error.status, .body = to_json(error) + "\n"};
  answer.headers.emplace_back("Content-Type", "application/json");
  if (error.status == 429 || error.status == 503) answer.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

ApiError to_api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return {.status = 400, .message = error.message};
    case ErrorCode::kNoMemory:
      return {.status = 400, .message = error.message, .code = "context_length_exceeded"};
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout:
    case ErrorCode::kCancelled:
      return {.status = 503, .message = error.message, .code = "unavailable"};
    default:
      return {.status = 500, .message = error.message, .code = "internal_error"};
  }
}

}  // namespace butterfly
