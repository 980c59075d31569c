#include "butterfly/serve/service.h"

#include <openssl/rand.h>

#include <charconv>
#include <random>

#include "butterfly/base/clock.h"
#include "butterfly/base/json.h"
#include "butterfly/base/log.h"
#include "butterfly/base/text/one_line.h"

namespace butterfly {

struct Service::Route {
  const char* path;  // one that ends in '/' is followed by an argument
  const char* method;
  Handler handler;
  bool open = false;  // without a key
};

namespace {

std::int64_t unix_seconds() {
  return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof(number)) != 1) number = std::random_device{}();
  return number;
}

}  // namespace

std::string new_request_id(Endpoint endpoint) {
  const char* prefix = endpoint == Endpoint::kChat ? "chatcmpl" : endpoint == Endpoint::kCompletion ? "cmpl" : "resp";
  return fmt::format("{}{}{:016x}{:08x}", prefix, endpoint == Endpoint::kResponse ? '_' : '-', random_number(),
                     static_cast<std::uint32_t>(random_number()));
}

bool Service::is_quick(const std::string& path) {
  return path == "/health" || path == "/health/ready" || path == "/metrics";
}

const Service::Route* Service::find_route(const std::string& path) {
  static const Route routes[] = {
      {"/health", "GET", &Service::health, true},         {"/health/ready", "GET", &Service::health_ready, true},
      {"/metrics", "GET", &Service::show_metrics},        {"/v1/models", "GET", &Service::models},
      {"/v1/models/", "GET", &Service::one_model},        {"/v1/cluster", "GET", &Service::cluster},
      {"/v1/streams/", "GET", &Service::stream},          {"/v1/chat/completions", "POST", &Service::chat},
      {"/v1/completions", "POST", &Service::completions}, {"/v1/responses", "POST", &Service::responses},
      {"/v1/embeddings", "POST", &Service::embeddings},   {"/tokenize", "POST", &Service::tokenize},
      {"/detokenize", "POST", &Service::detokenize},
  };
  for (const Route& route : routes) {
    const std::string_view fixed = route.path;
    const bool found = fixed.ends_with('/') ? path.starts_with(fixed) && path.size() > fixed.size() : path == fixed;
    if (found) return &route;
  }
  return nullptr;
}

HttpHeaders Service::common_headers() const {
  HttpHeaders headers;
  if (!options_.cors.empty()) {
    headers.emplace_back("Access-Control-Allow-Origin", options_.cors);
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
    if (options_.cors != "*") headers.emplace_back("Vary", "Origin");
  }
  return headers;
}

void Service::fail(Call& call, const ApiError& error) {
  HttpAnswer answer = to_answer(error);
  for (auto& header : common_headers()) answer.headers.push_back(std::move(header));
  if (!call.record->id.empty()) answer.headers.emplace_back("X-Request-Id", call.record->id);
  call.exchange->answer(std::move(answer));
}

void Service::send(Call& call, const std::string& json, int status) {
  HttpAnswer answer{.status = status, .headers = common_headers(), .body = json + "\n"};
  answer.headers.emplace_back("Content-Type", "application/json");
  call.exchange->answer(std::move(answer));
}

bool Service::allow(Call& call) {
  if (options_.keys.empty()) return true;
  const auto user = options_.keys.user_of(call.exchange->request().header("authorization"));
  if (user) {
    call.record->user = *user;
    return true;
  }
  fail(call, {.status = 401,
              .message = "the header \"Authorization: Bearer KEY\" has no key of this server",
              .code = "invalid_api_key"});
  return false;
}

void Service::handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  Call call{.exchange = exchange, .record = std::make_shared<AccessRecord>()};
  call.record->method = request.method;
  call.record->path = request.path;
  const Route* route = find_route(request.path);
  const std::string counted = route != nullptr ? route->path : "other";
  const auto began = std::chrono::steady_clock::now();
  exchange->on_end([this, counted, began, record = call.record](const HttpEnd& end) {
    metrics_.count_request(counted, end.status);
    record->status = end.status;
    record->delivered = end.delivered;
    record->seconds = seconds_since(began);
    if (options_.access) options_.access(*record);
  });
  try {
    dispatch(call);
  } catch (const std::exception& thrown) {  // of a library: a mistake of ours, or memory that is not there
    log().error("request {}: {}", call.record->id, thrown.what());
    fail(call, {.status = 500, .message = "the server failed at this request", .code = "internal_error"});
  }
}

void Service::dispatch(Call& call) {
  const HttpRequest& request = call.exchange->request();
  const Route* route = find_route(request.path);
  if (request.method == "OPTIONS" && !options_.cors.empty()) {
    HttpAnswer answer{.status = 204, .headers = common_headers()};
    answer.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    answer.headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID");
    answer.headers.emplace_back("Access-Control-Max-Age", "600");
    return call.exchange->answer(std::move(answer));
  }
  if ((route == nullptr || !route->open) && !allow(call)) return;
  if (route == nullptr) {
    return fail(call, {.status = 404,
                       .message = fmt::format("there is no {}", one_line(request.path.substr(0, 200))),
                       .code = "unknown_url"});
  }
  const bool fits =
      request.method == route->method || (request.method == "HEAD" && std::string_view(route->method) == "GET");
  if (!fits) {
    HttpAnswer answer = to_answer({.status = 405,
                                   .message = fmt::format("{} takes {}, not {}", route->path, route->method,
                                                          one_line(request.method.substr(0, 40))),
                                   .code = "method_not_allowed"});
    answer.headers.emplace_back("Allow", route->method);
    for (auto& header : common_headers()) answer.headers.push_back(std::move(header));
    return call.exchange->answer(std::move(answer));
  }
  if (call.exchange->refusal() == HttpExchange::Refusal::kBodyTooLarge) {
    return fail(call, {.status = 413,
                       .message = "the body is larger than this server takes (--body-limit)",
                       .code = "body_too_large"});
  }
  if (call.exchange->refusal() == HttpExchange::Refusal::kTooManyBodies) {
    return fail(call, {.status = 503, .message = "too many large bodies are being received", .code = "unavailable"});
  }
  const std::string_view fixed = route->path;
  if (fixed.ends_with('/')) call.argument = request.path.substr(fixed.size());
  (this->*route->handler)(call);
}

bool Service::parse(Call& call, nlohmann::ordered_json& body) {
  const auto error = parse_body(call.exchange->request().body, body);
  if (error) fail(call, *error);
  return !error;
}

bool Service::check_ready(Call& call) {
  if (ready()) return true;
  const char* why = draining_ ? "the server is about to end" : "the model is not ready yet";
  fail(call, {.status = 503, .message = why, .code = "unavailable"});
  return false;
}

bool Service::check_model(Call& call, const std::string& model) {
  if (model.empty() || model == options_.model) return true;
  fail(call, {.status = 404,
              .message = fmt::format("there is no model \"{}\" here, but \"{}\"", one_line(model.substr(0, 200)),
                                     options_.model),
              .param = "model",
              .code = "model_not_found"});
  return false;
}

void Service::health(Call& call) {
  send(call, R"({"status":"ok"})");
}

void Service::health_ready(Call& call) {
  if (check_ready(call)) send(call, R"({"status":"ok"})");
}

void Service::show_metrics(Call& call) {
  JobStore* const store = store_;
  HttpAnswer answer{.status = 200, .headers = common_headers()};
  answer.headers.emplace_back("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
  answer.body = metrics_.text(store != nullptr ? store->engine().stats() : SchedulerStats{}, options_.model, ready(),
                              connections_ ? connections_() : 0);
  call.exchange->answer(std::move(answer));
}

nlohmann::ordered_json Service::model_json() const {
  nlohmann::ordered_json json = {
      {"id", options_.model}, {"object", "model"}, {"created", since_}, {"owned_by", "butterfly"}};
  if (JobStore* const store = store_) json["max_model_len"] = store->engine().context();
  if (Embedder* const embedder = embedder_) json["max_model_len"] = embedder->tokens_max();
  return json;
}

void Service::models(Call& call) {
  send(call,
       dump_json(nlohmann::ordered_json{{"object", "list"}, {"data", nlohmann::ordered_json::array({model_json()})}}));
}

void Service::one_model(Call& call) {
  if (check_model(call, call.argument)) send(call, dump_json(model_json()));
}

void Service::cluster(Call& call) {
  nlohmann::ordered_json json = {{"model", options_.model}, {"ready", ready()}};
  if (JobStore* const store = store_) {
    json.update(store->engine().cluster());
    const SchedulerStats stats = store->engine().stats();
    json["requests"] = {{"running", stats.running},     {"waiting", stats.waiting},   {"finished", stats.finished},
                        {"cancelled", stats.cancelled}, {"refused", stats.refused},   {"failed", stats.failed},
                        {"preempted", stats.preempted}, {"replayed", stats.recovered}};
    json["cache"] = {
        {"pages", stats.cache_pages}, {"pages_kept", stats.cache_pages_kept}, {"pages_max", stats.cache_pages_max}};
  }
  send(call, dump_json(json));
}

void Service::generate(Call& call, Endpoint endpoint) {
  if (!check_ready(call)) return;
  JobStore* const store = store_;
  if (store == nullptr) {
    return fail(call, {.status = 400,
                       .message = fmt::format("{} gives vectors, not texts: use /v1/embeddings", options_.model),
                       .code = "unsupported_endpoint"});
  }
  nlohmann::ordered_json json;
  if (!parse(call, json)) return;
  GenerationBody body;
  if (const auto error = read_generation_body(endpoint, json, body)) return fail(call, *error);
  if (!check_model(call, body.model)) return;
  JournalEntry entry{.id = new_request_id(endpoint),
                     .user = call.record->user,
                     .endpoint = endpoint,
                     .seed = body.sampling.seed.value_or(random_number()),
                     .created = unix_seconds(),
                     .model = options_.model,
                     .body = call.exchange->request().body};
  call.record->id = entry.id;
  std::shared_ptr<Job> job;
  auto error = store->create(std::move(entry), job);
  if (!error) error = job->attach(call.exchange, 0, common_headers());
  if (error) return fail(call, *error);
}

void Service::stream(Call& call) {
  JobStore* const store = store_;
  if (store == nullptr) {
    check_ready(call);
    return;
  }
  const auto job = store->find(call.argument, call.record->user);
  if (!job) {
    return fail(call, {.status = 404,
                       .message = fmt::format("there is no request {} of yours, or it is over for long",
                                              one_line(call.argument.substr(0, 100))),
                       .code = "not_found"});
  }
  call.record->id = call.argument;
  std::size_t after = 0;
  const std::string& last = call.exchange->request().header("last-event-id");
  const auto [end, failed] = std::from_chars(last.data(), last.data() + last.size(), after);
  if (!last.empty() && (failed != std::errc{} || end != last.data() + last.size())) {
    return fail(call, {.status = 400,
                       .message = fmt::format("Last-Event-ID is \"{}\", expected the number of an event",
                                              one_line(last.substr(0, 40))),
                       .code = "invalid_value"});
  }
  const bool again = job->state() == Job::State::kWaiting;
  if (const auto error = job->attach(call.exchange, after, common_headers())) return fail(call, *error);
  ++metrics_.streams_resumed;
  if (again) ++metrics_.regenerated;
}

}  // namespace butterfly
