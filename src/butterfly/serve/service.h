// The endpoints of `butterfly serve`: who may ask, what for, and what is answered. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "butterfly/serve/engine/embedder.h"
#include "butterfly/serve/engine/job.h"
#include "butterfly/serve/http/api_keys.h"

namespace butterfly {

/// A request that ended, for the log. No text of it.
struct AccessRecord {
  std::string id{}, user{}, method{}, path{};
  int status = 0;
  bool delivered = true;
  double seconds = 0;
};

struct ServiceOptions {
  std::string model{};  // its name
  ApiKeys keys{};
  std::string cors{};  // the origin that web pages may have, or "*"; empty: none
  std::function<void(const AccessRecord& record)> access{};
};

class Service {
 public:
  explicit Service(ServiceOptions options) : options_(std::move(options)) {}

  /// For HttpServer.
  void handle(const std::shared_ptr<HttpExchange>& exchange);
  static bool is_quick(const std::string& path);

  /// What computes; null: nothing yet, or no more. Both outlive the service's use of them.
  void set_texts(JobStore* store) { store_ = store; }
  void set_embedder(Embedder* embedder) { embedder_ = embedder; }
  /// Whether the nodes are there that are needed.
  void set_running(bool running) { running_ = running; }
  /// No more requests are accepted.
  void drain() { draining_ = true; }
  void set_connections(std::function<unsigned()> connections) { connections_ = std::move(connections); }

  bool ready() const { return !draining_ && running_ && (store_ != nullptr || embedder_ != nullptr); }
  Metrics& metrics() { return metrics_; }

 private:
  /// A request on its way to its answer.
  struct Call {
    std::shared_ptr<HttpExchange> exchange{};
    std::shared_ptr<AccessRecord> record{};  // shared with what logs the end
    std::string argument{};                  // what follows the path of the route
  };
  using Handler = void (Service::*)(Call& call);
  struct Route;
  static const Route* find_route(const std::string& path);

  bool allow(Call& call);
  void dispatch(Call& call);
  void fail(Call& call, const ApiError& error);
  void send(Call& call, const std::string& json, int status = 200);
  bool parse(Call& call, nlohmann::ordered_json& body);
  bool check_model(Call& call, const std::string& model);
  bool check_ready(Call& call);
  HttpHeaders common_headers() const;

  void health(Call& call);
  void health_ready(Call& call);
  void show_metrics(Call& call);
  void models(Call& call);
  void one_model(Call& call);
  void cluster(Call& call);
  void tokenize(Call& call);
  void detokenize(Call& call);
  void embeddings(Call& call);
  void stream(Call& call);
  void chat(Call& call) { generate(call, Endpoint::kChat); }
  void completions(Call& call) { generate(call, Endpoint::kCompletion); }
  void responses(Call& call) { generate(call, Endpoint::kResponse); }
  void generate(Call& call, Endpoint endpoint);
  nlohmann::ordered_json model_json() const;
  const Tokenizer* tokenizer() const;

  const ServiceOptions options_;
  const std::int64_t since_ = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  Metrics metrics_;
  std::atomic<JobStore*> store_{nullptr};
  std::atomic<Embedder*> embedder_{nullptr};
  std::atomic<bool> running_{false};
  std::atomic<bool> draining_{false};
  std::function<unsigned()> connections_;
};

/// "chatcmpl-" and 24 letters and digits that nobody can guess.
std::string new_request_id(Endpoint endpoint);

}  // namespace butterfly
