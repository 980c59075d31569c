// A client of OpenAI-compatible servers that times what it streams. A connection for each request; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"

typedef struct ssl_ctx_st SSL_CTX;

namespace butterfly::app {

struct StreamTarget {
  std::string host{};
  std::string port{};
  std::string base{};              // of the path, without a '/' at its end
  std::string key{};               // empty: none
  std::shared_ptr<SSL_CTX> tls{};  // shared by all connections; null: plain HTTP
};

/// "http://127.0.0.1:8080", "https://host/v1". `authority`: PEM file to trust; empty: the system's.
/// Errors: kInvalidArgument, kIo.
Result<StreamTarget> parse_target(const std::string& url, const std::string& authority);

/// Seconds since it was sent.
struct StreamTimes {
  int status = 0;
  std::string failure{};          // a sentence; empty where the stream was whole
  double first_s = 0;             // the first text
  double last_s = 0;              // the last text
  std::size_t texts = 0;          // events with text
  std::size_t answer_tokens = 0;  // as the server counts them; 0: it does not say
  std::size_t prompt_tokens = 0;
};

/// Posts `body`, whose answer is a stream of chunks of completions or of conversations, and reads it to the end.
StreamTimes time_stream(const StreamTarget& target, const std::string& path, const std::string& body);

}  // namespace butterfly::app
