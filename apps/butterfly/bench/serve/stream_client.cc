#include "bench/serve/stream_client.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <optional>

#include "butterfly/base/clock.h"
#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"

namespace butterfly::app {
namespace {

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;

constexpr std::size_t kHeadBytesMax = std::size_t{64} << 10;
constexpr std::size_t kLineBytesMax = std::size_t{16} << 20;

Bio connect_to(const StreamTarget& target) {
  const std::string address = target.host + ":" + target.port;
  Bio bio(target.tls ? BIO_new_ssl_connect(target.tls.get()) : BIO_new_connect(address.c_str()));
  if (!bio) return {};
  if (target.tls) {
    SSL* ssl = nullptr;
    BIO_get_ssl(bio.get(), &ssl);
    if (ssl == nullptr) return {};
    SSL_set_tlsext_host_name(ssl, target.host.c_str());
    SSL_set1_host(ssl, target.host.c_str());
    BIO_set_conn_hostname(bio.get(), address.c_str());
  }
  if (BIO_do_connect(bio.get()) != 1) return {};
  return bio;
}

/// The body of an answer as it comes, without the frames of chunks.
class BodyReader {
 public:
  explicit BodyReader(BIO* bio) : bio_(bio) {}

  /// The status; 0 where there is no answer.
  int read_head() {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (buffer_.size() > kHeadBytesMax || !fill()) return 0;
    }
    std::string head = buffer_.substr(0, end);
    buffer_.erase(0, end + 4);
    std::ranges::transform(head, head.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    chunked_ = head.find("transfer-encoding: chunked") != std::string::npos;
    int status = 0;
    const std::size_t space = head.find(' ');
    if (space != std::string::npos) std::from_chars(head.data() + space + 1, head.data() + head.size(), status);
    return status;
  }

  /// More of the body; nothing at its end.
  std::optional<std::string> read() {
    if (!chunked_) {
      if (buffer_.empty() && !fill()) return std::nullopt;
      return std::exchange(buffer_, {});
    }
    while (left_ == 0) {
      if (buffer_.starts_with("\r\n")) buffer_.erase(0, 2);
      const std::size_t end = buffer_.find("\r\n");
      if (end == std::string::npos || end == 0) {
        if (!fill()) return std::nullopt;
        continue;
      }
      std::from_chars(buffer_.data(), buffer_.data() + end, left_, 16);
      buffer_.erase(0, end + 2);
      if (left_ == 0) return std::nullopt;
    }
    if (buffer_.empty() && !fill()) return std::nullopt;
    const std::size_t count = std::min(left_, buffer_.size());
    std::string piece = buffer_.substr(0, count);
    buffer_.erase(0, count);
    left_ -= count;
    return piece;
  }

 private:
  bool fill() {
    char bytes[16384];
    const int count = BIO_read(bio_, bytes, sizeof(bytes));
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  BIO* bio_;
  std::string buffer_;
  bool chunked_ = false;
  std::size_t left_ = 0;
};

/// One event of a stream. False at its end.
bool take_event(const std::string& data, double now, StreamTimes& times) {
  if (data == "[DONE]") return false;
  const nlohmann::json json = parse_json(data);
  if (!json.is_object()) return true;
  if (json.contains("error")) {
    times.failure = one_line(dump_json(json["error"]).substr(0, 200));
    return false;
  }
  if (json.contains("usage") && json["usage"].is_object()) {
    const auto count = [&json](const char* name) {
      const auto& usage = json["usage"];
      return usage.contains(name) && usage[name].is_number_unsigned() ? usage[name].get<std::size_t>() : 0;
    };
    times.answer_tokens = count("completion_tokens");
    times.prompt_tokens = count("prompt_tokens");
  }
  if (!json.contains("choices") || !json["choices"].is_array() || json["choices"].empty()) return true;
  const nlohmann::json& choice = json["choices"][0];
  const nlohmann::json& holder = choice.contains("delta") ? choice["delta"] : choice;
  for (const char* name : {"text", "content", "reasoning_content", "reasoning"}) {
    if (!holder.is_object() || !holder.contains(name) || !holder[name].is_string()) continue;
    if (holder[name].get_ref<const std::string&>().empty()) continue;
    if (times.texts++ == 0) times.first_s = now;
    times.last_s = now;
    break;
  }
  return true;
}

void read_stream(BodyReader& reader, std::chrono::steady_clock::time_point begin, StreamTimes& times) {
  std::string lines;
  while (const auto piece = reader.read()) {
    lines += *piece;
    if (lines.size() > kLineBytesMax) break;
    std::size_t at = 0;
    for (std::size_t end; (end = lines.find('\n', at)) != std::string::npos; at = end + 1) {
      std::string line = lines.substr(at, end - at);
      if (line.ends_with('\r')) line.pop_back();
      if (!line.starts_with("data:")) continue;
      line.erase(0, line.starts_with("data: ") ? 6 : 5);
      if (!take_event(line, seconds_since(begin), times)) return;
    }
    lines.erase(0, at);
  }
  times.failure = "the stream ended before [DONE]";
}

}  // namespace

Result<StreamTarget> parse_target(const std::string& url, const std::string& authority) {
  StreamTarget target;
  const bool tls = url.starts_with("https://");
  if (!tls && !url.starts_with("http://")) {
    return make_error(ErrorCode::kInvalidArgument, "--url is \"{}\", expected http://HOST:PORT or https://HOST:PORT",
                      one_line(url));
  }
  const std::string rest = url.substr(tls ? 8 : 7);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string place = rest.substr(0, slash);
  target.base = rest.substr(slash);
  while (target.base.ends_with('/')) target.base.pop_back();
  if (target.base.ends_with("/v1")) target.base.resize(target.base.size() - 3);
  const std::size_t colon = place.rfind(':');
  const bool has_port = colon != std::string::npos && place.find(']', colon) == std::string::npos;
  target.host = place.substr(0, has_port ? colon : place.size());
  target.port = has_port ? place.substr(colon + 1) : tls ? "443" : "80";
  if (!tls) return target;
  target.tls.reset(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (!target.tls) return make_error(ErrorCode::kIo, "OpenSSL gives no context for TLS");
  SSL_CTX_set_verify(target.tls.get(), SSL_VERIFY_PEER, nullptr);
  const int trusted = authority.empty() ? SSL_CTX_set_default_verify_paths(target.tls.get())
                                        : SSL_CTX_load_verify_locations(target.tls.get(), authority.c_str(), nullptr);
  if (trusted != 1) {
    return make_error(ErrorCode::kIo, "{}: is no PEM file of certificates to trust",
                      authority.empty() ? "the system's store" : authority);
  }
  return target;
}

StreamTimes time_stream(const StreamTarget& target, const std::string& path, const std::string& body) {
  StreamTimes times;
  const auto begin = std::chrono::steady_clock::now();
  const Bio bio = connect_to(target);
  if (!bio) {
    times.failure = fmt::format("{}:{} cannot be reached{}", target.host, target.port,
                                target.tls ? ", or its certificate is not trusted" : "");
    return times;
  }
  std::string request = fmt::format(
      "POST {}{} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\n"
      "Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n",
      target.base, path, target.host, target.port, body.size());
  if (!target.key.empty()) request += fmt::format("Authorization: Bearer {}\r\n", target.key);
  request += "\r\n" + body;
  for (std::size_t sent = 0; sent < request.size();) {
    const int count = BIO_write(bio.get(), request.data() + sent, static_cast<int>(request.size() - sent));
    if (count <= 0) {
      times.failure = "the connection broke while the request was sent";
      return times;
    }
    sent += static_cast<std::size_t>(count);
  }
  BodyReader reader(bio.get());
  times.status = reader.read_head();
  if (times.status == 200) {
    read_stream(reader, begin, times);
  } else {
    const auto content = reader.read();
    times.failure = fmt::format("status {}{}", times.status, content ? ": " + one_line(content->substr(0, 200)) : "");
  }
  return times;
}

}  // namespace butterfly::app
