// Errors as OpenAI's API shows them: {"error": {"message", "type", "param", "code"}} and a status. Plain values.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/serve/http/http_server.h"

namespace butterfly {

struct ApiError {
  int status = 400;
  std::string message{};
  std::string param{};  // of the request's body; empty: null
  std::string code{};   // empty: null
};

/// "invalid_request_error", "authentication_error", ... by the status.
std::string error_type(int status);

std::string to_json(const ApiError& error);

/// With what HTTP asks for beside the body: Retry-After, WWW-Authenticate, Allow is the caller's.
HttpAnswer to_answer(const ApiError& error);

/// 400 for what was asked for wrongly, 429 and 503 for what may go better later, 500 for the rest.
ApiError to_api_error(const Error& error);

}  // namespace butterfly
