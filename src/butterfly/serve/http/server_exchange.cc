#include "butterfly/serve/http/server_exchange.h"

#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{16} << 10;   // of a stream, read at once
constexpr std::size_t kDrainBytes = std::size_t{128} << 20;  // of a body that is too large, before the answer
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;    // of a body, whose memory goes back to the system

}  // namespace

ServerExchange::~ServerExchange() {
  all_bodies_->bytes -= counted_bytes_;
  if (counted_bytes_ >= kLargeBytes) all_bodies_->freed_large = true;
}

MHD_Result ServerExchange::add_header(void* to, MHD_ValueKind kind, const char* name, const char* value) {
  auto& request = *static_cast<HttpRequest*>(to);
  if (kind == MHD_GET_ARGUMENT_KIND) {
    request.query[name] = value != nullptr ? value : "";
    return MHD_YES;
  }
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  request.headers[lower] = value != nullptr ? value : "";
  return MHD_YES;
}

MHD_Result ServerExchange::begin(const char* method, const char* path) {
  request_.method = method;
  request_.path = path;
  MHD_get_connection_values(connection_, MHD_HEADER_KIND, &ServerExchange::add_header, &request_);
  MHD_get_connection_values(connection_, MHD_GET_ARGUMENT_KIND, &ServerExchange::add_header, &request_);
  std::size_t length = 0;
  const std::string& told = request_.header("content-length");
  std::from_chars(told.data(), told.data() + told.size(), length);
  if (length <= host_.options().body_bytes_max) return MHD_YES;
  refusal_ = Refusal::kBodyTooLarge;
  // A client that asks first, or that has more than is worth waiting for, is told at once.
  if (length <= kDrainBytes && request_.header("expect").empty()) return MHD_YES;
  handed_over_ = true;
  host_.set_phase(state_, HttpConnection::Phase::kAnswer, {});
  return MHD_YES;
}

MHD_Result ServerExchange::take_body(const char* data, std::size_t size) {
  received_ += size;
  if (received_ > std::max(kDrainBytes, host_.options().body_bytes_max)) return MHD_NO;
  if (refusal_ != Refusal::kNone) return MHD_YES;
  if (received_ > host_.options().body_bytes_max) {
    refusal_ = Refusal::kBodyTooLarge;
  } else if (!host_.count_body(size)) {
    refusal_ = Refusal::kTooManyBodies;
  } else {
    counted_bytes_ += size;
    request_.body.append(data, size);
    return MHD_YES;
  }
  request_.body = {};
  all_bodies_->bytes -= std::exchange(counted_bytes_, 0);
  all_bodies_->freed_large = true;
  return MHD_YES;
}

MHD_Result ServerExchange::proceed() {
  const std::lock_guard lock(mutex_);
  if (gone_ || host_.stopping()) return MHD_NO;
  if (answer_) return send_locked();
  MHD_suspend_connection(connection_);
  suspended_ = true;
  return MHD_YES;
}

void ServerExchange::resume_locked() {
  if (!suspended_ || connection_ == nullptr) return;
  suspended_ = false;
  MHD_resume_connection(connection_);
}

void ServerExchange::answer(HttpAnswer answer) {
  const std::lock_guard lock(mutex_);
  if (answer_) return;
  answer_ = std::move(answer);
  resume_locked();
}

void ServerExchange::stream(int status, HttpHeaders headers, std::shared_ptr<HttpSource> source) {
  const std::lock_guard lock(mutex_);
  if (answer_) return;
  source_ = std::move(source);
  answer_ = HttpAnswer{.status = status, .headers = std::move(headers)};
  resume_locked();
}

void ServerExchange::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  if (source_) resume_locked();
}

void ServerExchange::hang_up() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  resume_locked();
}

void ServerExchange::abandon() {
  hang_up();
  // A client that does not read is waited for; that ends here.
  const std::lock_guard lock(mutex_);
  if (connection_ != nullptr) ::shutdown(state_->socket, SHUT_RDWR);
}

bool ServerExchange::is_suspended() {
  const std::lock_guard lock(mutex_);
  return suspended_ && !gone_;
}

void ServerExchange::show_life(HttpClock::time_point now) {
  const auto every = host_.options().keep_alive;
  const std::lock_guard lock(mutex_);
  if (!source_ || !suspended_ || gone_ || every.count() == 0 || now - piece_since_ < every) return;
  shows_life_ = true;
  resume_locked();
}

void ServerExchange::on_end(std::function<void(const HttpEnd& end)> ended) {
  std::optional<HttpEnd> already;
  {
    const std::lock_guard lock(mutex_);
    already = ended_;
    if (!already) on_end_.push_back(std::move(ended));
  }
  if (already) ended(*already);
}

void ServerExchange::completed(bool delivered) {
  std::vector<std::function<void(const HttpEnd&)>> ended;
  HttpEnd end;
  {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
    suspended_ = false;
    end = {.delivered = delivered && !gone_ && answer_, .status = answer_ ? answer_->status : 0};
    gone_ = true;
    ended_ = end;
    ended = std::exchange(on_end_, {});
    source_ = nullptr;
  }
  for (const auto& each : ended) each(end);
  host_.exchange_ended();
}

ssize_t ServerExchange::read_piece(char* out, std::size_t size) {
  while (true) {
    std::shared_ptr<HttpSource> source;
    {
      const std::lock_guard lock(mutex_);
      if (gone_ || host_.stopping()) return MHD_CONTENT_READER_END_WITH_ERROR;
      if (piece_sent_ < piece_.size()) {
        const std::size_t count = std::min(size, piece_.size() - piece_sent_);
        std::memcpy(out, piece_.data() + piece_sent_, count);
        piece_sent_ += count;
        return static_cast<ssize_t>(count);
      }
      if (source_ended_) return MHD_CONTENT_READER_END_OF_STREAM;
      piece_.clear();
      piece_sent_ = 0;
      woken_ = false;
      source = source_;
    }
    std::string piece;
    trace::Scope scope(trace::Zone::kTell);
    const HttpSource::State state = source->read(piece, kPieceBytes);
    scope.set_work({.number = 1, .bytes = piece.size()});
    scope.end();
    const std::lock_guard lock(mutex_);
    piece_ = std::move(piece);
    if (state == HttpSource::State::kBroken) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (state == HttpSource::State::kEnd) source_ended_ = true;
    if (std::exchange(shows_life_, false) && piece_.empty() && !source_ended_) piece_ = source->sign_of_life();
    if (!piece_.empty()) piece_since_ = HttpClock::now();
    if (state != HttpSource::State::kWait || !piece_.empty() || woken_) continue;
    if (gone_ || host_.stopping()) return MHD_CONTENT_READER_END_WITH_ERROR;
    MHD_suspend_connection(connection_);
    suspended_ = true;
    return 0;
  }
}

MHD_Result ServerExchange::send_locked() {
  MHD_Response* response = nullptr;
  if (source_) {
    const auto read = [](void* self, std::uint64_t, char* out, std::size_t size) {
      return (*static_cast<ExchangeHolder*>(self))->read_piece(out, size);
    };
    const auto release = [](void* self) { delete static_cast<ExchangeHolder*>(self); };
    auto* holder = new ExchangeHolder(state_->exchange.lock());
    if (!*holder) {
      delete holder;
      return MHD_NO;
    }
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kPieceBytes, read, holder, release);
    if (response == nullptr) delete holder;
  } else {
    response = MHD_create_response_from_buffer(answer_->body.size(), answer_->body.data(), MHD_RESPMEM_MUST_COPY);
  }
  if (response == nullptr) return MHD_NO;
  for (const auto& [name, value] : answer_->headers) MHD_add_response_header(response, name.c_str(), value.c_str());
  if (refusal_ != Refusal::kNone) MHD_add_response_header(response, "Connection", "close");
  const MHD_Result queued = MHD_queue_response(connection_, static_cast<unsigned>(answer_->status), response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace butterfly
