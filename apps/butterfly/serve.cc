// butterfly serve: the model behind OpenAI's HTTP API. One line on stderr says where; nothing goes to stdout.
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/embedding_recipe.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/inference/kv_cache.h"
#include "butterfly/serve/service.h"
#include "butterfly/stage/stage.h"
#include "butterfly/wire/channel/address.h"
#include "butterfly/wire/enrolment/secret_files.h"
#include "chat/chat_model.h"
#include "commands.h"
#include "shared/access.h"
#include "shared/replicas.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kPemBytes = std::size_t{1} << 20;
constexpr int kTick = 500;  // ms

struct ServeCommand {
  InferenceFlags flags;
  ChatFlags chat;
  HttpOptions http{.address = "127.0.0.1:8080"};
  std::string alias, api_keys, certificate, private_key, cors, journal, log_format = "text";
  int replicas = 0;  // 0: choose_replicas()
  int parallel = 64;
  int queue = 256;
  std::uint64_t cache_tokens = 0;
  double slowdown = 1.4;
  int body_limit_mb = 16;
  int connections = 16384;
  int drain_timeout = 30;
  int retention = 600;
  int stream_buffer_mb = 4;
  int keep_alive = 15;
  bool embeddings = false;
  bool no_prefix_cache = false;
};

std::string model_name(const ServeCommand& command, const InferenceConfig& config) {
  if (!command.alias.empty()) return command.alias;
  std::filesystem::path path(config.model);
  if (path.filename().empty()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

bool is_loopback_address(const std::string& address) {
  const auto resolved = resolve(address, after_ms(10'000));
  return resolved && std::ranges::all_of(*resolved, [](const SocketAddress& each) { return is_loopback(each); });
}

/// Keys, TLS, and whether the address may be had without them.
Status read_access(ServeCommand& command, ApiKeys& keys) {
  if (command.certificate.empty() != command.private_key.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "--tls-cert is {} and --tls-key is {}: both are needed, or none",
                      command.certificate.empty() ? "missing" : command.certificate,
                      command.private_key.empty() ? "missing" : command.private_key);
  }
  if (!command.certificate.empty()) {
    BF_ASSIGN_OR_RETURN(command.http.certificate, read_file(command.certificate, kPemBytes));
    BF_ASSIGN_OR_RETURN(command.http.private_key, read_file(command.private_key, FileAccess::kOwnerOnly, kPemBytes));
  }
  if (!command.api_keys.empty()) {
    BF_ASSIGN_OR_RETURN(keys, ApiKeys::read(command.api_keys));
  }
  if ((keys.empty() || command.certificate.empty()) && !is_loopback_address(command.http.address)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--listen {} can be reached from other machines: that needs --api-keys and --tls-cert with "
                      "--tls-key, or an address such as 127.0.0.1:8080 behind a proxy that has them",
                      command.http.address);
  }
  return {};
}

/// A line on stderr for each request that ended.
std::function<void(const AccessRecord&)> access_log(const std::string& format) {
  if (format == "off") return {};
  return [json = format == "json"](const AccessRecord& record) {
    const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    std::tm time{};
    gmtime_r(&now, &time);
    char stamp[32];
    std::strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &time);
    std::string line;
    if (json) {
      line = dump_json(nlohmann::ordered_json{{"time", stamp},
                                              {"request", record.id},
                                              {"user", record.user},
                                              {"method", record.method},
                                              {"path", record.path},
                                              {"status", record.status},
                                              {"delivered", record.delivered},
                                              {"seconds", record.seconds}});
    } else {
      line = fmt::format("{} {} {} {} {} {}{}{}", stamp, record.id.empty() ? "-" : record.id, record.method,
                         record.path, record.status, format_seconds(record.seconds),
                         record.user.empty() ? "" : " user " + record.user, record.delivered ? "" : " hung up");
      line = one_line(line);
    }
    std::fprintf(stderr, "%s\n", line.c_str());
  };
}

/// Everything that a running server consists of, in the order in which it goes.
struct Serving {
  explicit Serving(ServiceOptions options) : service(std::move(options)) {}
  Service service;
  Journal journal{};
  Checkpoint checkpoint{};
  std::stop_source stop_waiting{};  // for workers
  std::vector<std::unique_ptr<Deployment>> replicas{};
  std::optional<Tokenizer> tokenizer{};
  std::unique_ptr<TextEngine> texts{};
  std::unique_ptr<JobStore> jobs{};
  std::unique_ptr<Embedder> embedder{};
  std::unique_ptr<HttpServer> http{};
  std::stop_source stop_computing{};
};

DeploymentObserver watch_cluster(Serving& serving, std::size_t replica, bool quiet) {
  const auto tell = [&serving, replica](bool up) {
    const bool any = serving.texts ? serving.texts->set_up(replica, up) : up;
    serving.service.set_running(any);
    return any;
  };
  DeploymentObserver observer;
  observer.epoch = [&serving, tell](const EpochReport&) {
    ++serving.service.metrics().epochs;
    tell(true);
  };
  observer.waiting = [tell, replica, quiet](const std::string& why) {
    const bool others = tell(false);
    if (quiet) return;
    std::fprintf(stderr, "%s%s\n", one_line(why).c_str(),
                 others ? fmt::format(": the texts of replica {} go on over the others", replica).c_str() : "");
  };
  return observer;
}

Result<int> count_replicas(const ServeCommand& command, const InferenceConfig& config, bool embeds,
                           const Checkpoint& checkpoint) {
  if (embeds && command.replicas > 1) {
    return make_error(ErrorCode::kUnsupported, "{} gives vectors: replicas are for models that continue texts",
                      checkpoint.config.name);
  }
  if (embeds || command.replicas > 0) return std::max(command.replicas, 1);
  BF_ASSIGN_OR_RETURN(const int count, choose_replicas(checkpoint, config.deployment));
  if (count > 1 && !config.quiet) {
    std::fprintf(stderr, "%d replicas: each worker has room for the whole model, and --goal is throughput\n", count);
  }
  return count;
}

/// Tokens that a text may have with every replica.
int context_of(const Serving& serving) {
  int context = serving.checkpoint.config.context;
  for (const auto& replica : serving.replicas) context = std::min(context, replica->plan().context);
  return context;
}

/// Positions for which half of the memory that is left here has room, as if all layers were here; one text at least.
/// Workers hold a part of them each.
std::int64_t standard_cache_tokens(const Serving& serving, const DeploymentConfig& deployment) {
  const ModelConfig& model = serving.checkpoint.config;
  const DType type = deployment.compute.kv_type.value_or(kv_type_for(model));
  const std::uint64_t position = cached_bytes(type, static_cast<std::uint64_t>(model.cached_key_dim())) +
                                 cached_bytes(type, static_cast<std::uint64_t>(model.cached_value_dim()));
  const auto heads = static_cast<std::uint64_t>(std::max(1, model.layers) * std::max(1, model.kv_heads));
  const auto topology = detect_topology();
  const std::uint64_t all = topology ? topology->offered_memory_bytes() / 2 : 0;
  const std::uint64_t room = deployment.is_here() ? all / serving.replicas.size() : all;
  return std::max<std::int64_t>(context_of(serving),
                                static_cast<std::int64_t>(room / std::max<std::uint64_t>(position * heads, 1)));
}

Status open_texts(const ServeCommand& command, const InferenceConfig& config, const ChatSettings& settings,
                  Serving& serving, const std::string& name) {
  TextEngineOptions options{.name = name, .standard = config.request};
  auto chat = ChatModel::create(command.chat, settings);
  if (chat) {
    options.chat = std::move(*chat);
  } else if (!command.chat.chat_template.empty()) {
    return tl::unexpected(std::move(chat).error());
  } else {
    options.no_chat = fmt::format(
        "{} has no chat template: use /v1/completions, or start the server with "
        "--chat-template FILE",
        name);
  }
  const int count = static_cast<int>(serving.replicas.size());
  std::vector<Deployment*> replicas;
  for (const auto& replica : serving.replicas) {
    replicas.push_back(replica.get());
    BF_ASSIGN_OR_RETURN(std::shared_ptr<Drafter> drafter, open_drafter(config, serving.checkpoint));
    options.drafters.push_back(std::move(drafter));
  }
  const auto share = [count](int of_all) { return (of_all + count - 1) / count; };
  options.scheduler = {.context = context_of(serving),
                       .vocab = serving.checkpoint.config.vocab,
                       .rows_max = config.prefill_chunk,
                       .sequences_max = share(command.parallel),
                       .cache_tokens = command.cache_tokens > 0 ? static_cast<std::int64_t>(command.cache_tokens)
                                                                : standard_cache_tokens(serving, config.deployment),
                       .waiting_max = static_cast<std::size_t>(share(command.queue)),
                       .keep_prefixes = !command.no_prefix_cache,
                       .slowdown_max = command.slowdown};
  serving.texts = std::make_unique<TextEngine>(serving.checkpoint, replicas, *serving.tokenizer, std::move(options));
  const JobStoreOptions kept{.retention = std::chrono::seconds(command.retention),
                             .unread_bytes_max = static_cast<std::size_t>(command.stream_buffer_mb) << 20};
  serving.jobs = std::make_unique<JobStore>(*serving.texts, serving.journal, serving.service.metrics(), kept);
  const std::size_t found = serving.jobs->recover();
  if (found > 0 && !config.quiet) {
    std::fprintf(stderr, "%zu request%s of the server before this one %s computed again\n", found,
                 found == 1 ? "" : "s", found == 1 ? "is" : "are");
  }
  serving.service.set_texts(serving.jobs.get());
  return {};
}

Status open_embedder(const InferenceConfig& config, Serving& serving, const std::string& name) {
  BF_ASSIGN_OR_RETURN(EmbeddingRecipe recipe, read_embedding_recipe(serving.checkpoint));
  EmbedderOptions options{.name = name, .recipe = std::move(recipe)};
  options.rows_max = std::max(config.prefill_chunk, options.rows_max);
  serving.embedder =
      std::make_unique<Embedder>(serving.checkpoint, *serving.replicas.front(), *serving.tokenizer, std::move(options));
  serving.service.set_embedder(serving.embedder.get());
  return {};
}

/// Ends computing once a signal came and every answer is sent, or the time for that is over.
void drain_on_signal(const ServeCommand& command, Serving& serving, const std::stop_token& over) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  const std::stop_callback wake(interrupted(), [&] { changed.notify_all(); });
  while (!interrupted().stop_requested() && !over.stop_requested()) {
    changed.wait_for(lock, over, std::chrono::milliseconds(kTick), [] { return interrupted().stop_requested(); });
    if (serving.jobs) serving.jobs->tick();
  }
  serving.service.drain();
  if (!over.stop_requested()) {
    std::fprintf(stderr, "no new requests; those under way have %d s, a second signal ends at once\n",
                 command.drain_timeout);
    serving.http->wait_until_idle(std::chrono::seconds(command.drain_timeout));
  }
  if (serving.jobs) serving.jobs->stop();
  serving.stop_computing.request_stop();
}

Status compute(const ServeCommand& command, Serving& serving) {
  std::stop_source over;
  std::thread watcher([&] { drain_on_signal(command, serving, over.get_token()); });
  const auto token = serving.stop_computing.get_token();
  serving.service.set_running(true);
  std::fprintf(stderr, "ready at %s://%s\n", command.http.certificate.empty() ? "http" : "https",
               serving.http->address().c_str());
  const Status status = serving.texts ? serving.texts->run(token) : serving.embedder->run(token);
  serving.service.set_running(false);
  over.request_stop();
  watcher.join();
  serving.http.reset();
  return status;
}

Status open_journal(const ServeCommand& command, Serving& serving) {
  if (command.journal == "off" || command.embeddings) return {};
  const std::string folder =
      command.journal.empty() ? standard_journal_folder(serving.http->address()) : command.journal;
  if (folder.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "there is no home for the journal: neither XDG_STATE_HOME nor HOME is a folder; name one with "
                      "--journal DIR, or do without with --journal off");
  }
  BF_ASSIGN_OR_RETURN(serving.journal, Journal::open(folder));
  return {};
}

/// Bodies that are taken apart leave holes: the fewer heaps threads have, the less memory stays in them.
void bound_heaps() {
  constexpr int kHeapsMax = 2;
  ::mallopt(M_ARENA_MAX, kHeapsMax);
}

Result<int> run(ServeCommand& command) {
  bound_heaps();
  ChatSettings settings;
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_chat_config(command.flags, settings));
  if (!settings.temperature && config.request.sampling.temperature == 0) config.request.sampling.temperature = 1;
  ApiKeys keys;
  BF_TRY(read_access(command, keys));
  command.http.body_bytes_max = static_cast<std::size_t>(command.body_limit_mb) << 20;
  command.http.connections_max = static_cast<unsigned>(command.connections);
  command.http.keep_alive = std::chrono::seconds(command.keep_alive);
  if (config.deployment.plan.goal == PlanGoal::kThroughput) config.deployment.plan.side_by_side = command.parallel;
  const std::string name = model_name(command, config);
  Serving serving({.model = name, .keys = keys, .cors = command.cors, .access = access_log(command.log_format)});
  Service& service = serving.service;
  BF_ASSIGN_OR_RETURN(
      serving.http,
      HttpServer::start(
          command.http, [&service](const std::shared_ptr<HttpExchange>& exchange) { service.handle(exchange); },
          &Service::is_quick));
  service.set_connections([&serving] { return serving.http ? serving.http->connections() : 0; });
  BF_TRY(open_journal(command, serving));
  bool embeds = command.embeddings;
  const auto adapt = [&](ModelConfig& model) -> Status {
    embeds = embeds || (model.encodes_only());
    if (!embeds) return check_continues(model);
    if (model.has_decoder()) {
      return make_error(ErrorCode::kUnsupported,
                        "{} has a decoder behind its encoder, vectors come from models of one of them", model.name);
    }
    model.output = OutputKind::kHidden;
    return {};
  };
  BF_TRY(replica_config(config.deployment, 0, std::max(command.replicas, 1)));
  BF_ASSIGN_OR_RETURN(serving.checkpoint, open_checkpoint(config.model));
  BF_TRY(adapt(serving.checkpoint.config));
  if (!config.deployment.is_here()) warn_of_plain_text(config.deployment.access);
  BF_ASSIGN_OR_RETURN(const int replicas, count_replicas(command, config, embeds, serving.checkpoint));
  const auto observer_of = [&](std::size_t replica) { return watch_cluster(serving, replica, config.quiet); };
  const std::stop_callback on_interrupt(interrupted(), [&serving] { serving.stop_waiting.request_stop(); });
  BF_ASSIGN_OR_RETURN(serving.replicas,
                      deploy_replicas(serving.checkpoint, config, replicas, observer_of, serving.stop_waiting));
  BF_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::create(serving.checkpoint.vocabulary));
  serving.tokenizer.emplace(std::move(tokenizer));
  BF_TRY(embeds ? open_embedder(config, serving, name) : open_texts(command, config, settings, serving, name));
  BF_TRY(compute(command, serving));
  return kExitOk;
}

void add_http_flags(Command sub, ServeCommand& command) {
  const char* group = "The server";
  sub.add_option("--listen", command.http.address, "HOST:PORT; port 0: any that is free").show_default().group(group);
  sub.add_option("--alias", command.alias, "The model's name for clients (default: that of its file)").group(group);
  sub.add_option("--api-keys", command.api_keys,
                 "File with a key on each line, KEY or NAME:KEY; only its owner may read it. Without it, everyone who "
                 "reaches the port may ask")
      .group(group);
  sub.add_option("--tls-cert", command.certificate, "PEM file: certificate and chain").group(group);
  sub.add_option("--tls-key", command.private_key, "PEM file: its key; only its owner may read it").group(group);
  sub.add_option("--cors", command.cors, "Origin whose web pages may ask, or *").group(group);
  sub.add_option("--body-limit", command.body_limit_mb, "MiB that the body of a request may have")
      .in_range(1, 1024)
      .show_default()
      .group(group);
  sub.add_option("--connections", command.connections, "Connections that are held at once")
      .in_range(16, 1 << 20)
      .show_default()
      .group(group);
  sub.add_option("--keep-alive", command.keep_alive,
                 "Seconds after which a stream that waits sends a comment, so that no proxy gives it up; 0: never")
      .in_range(0, 3600)
      .show_default()
      .group(group);
  sub.add_option("--log-format", command.log_format, "A line on stderr for each request: text, json or off")
      .one_of({"text", "json", "off"})
      .show_default()
      .group(group);
}

void add_request_flags(Command sub, ServeCommand& command) {
  const char* group = "Requests";
  sub.add_option(
         "--replicas", command.replicas,
         "Copies of the model, each on an equal part of the workers or of the nodes here. A text is computed by the "
         "one with the least to do, and goes on over the others where that one dies. 0: with --goal throughput and "
         "--split auto one for each worker, where each has room for the whole model; else 1")
      .in_range(0, 1024)
      .show_default()
      .group(group);
  sub.add_option("--parallel", command.parallel, "Texts that are computed side by side")
      .in_range(1, 4096)
      .show_default()
      .group(group);
  sub.add_option("--queue", command.queue, "Texts that may wait; more are refused with 429")
      .in_range(1, 1 << 20)
      .show_default()
      .group(group);
  sub.add_option("--cache-tokens", command.cache_tokens,
                 "Tokens for which every node has room in its cache; 0: as many as half of this machine's free memory "
                 "would hold of the whole model")
      .whole_number()
      .show_default()
      .group(group);
  sub.add_option("--slowdown", command.slowdown,
                 "Prompts are cut so that a step with texts being written takes at most this many times what it takes "
                 "without; 0: they are not")
      .show_default()
      .group(group);
  sub.add_flag("--no-prefix-cache", command.no_prefix_cache, "Keep nothing for prompts that begin alike").group(group);
  sub.add_option("--journal", command.journal,
                 "Folder in which requests are kept until they are answered, also by the next server; off: nowhere "
                 "(default: ~/.local/state/butterfly/journal-ADDRESS)")
      .group(group);
  sub.add_option("--retention", command.retention, "Seconds for which a client may come back to its stream")
      .in_range(1, 86'400)
      .show_default()
      .group(group);
  sub.add_option("--stream-buffer", command.stream_buffer_mb,
                 "MiB of a stream that its client may leave unread; one with more is cut")
      .in_range(1, 1024)
      .show_default()
      .group(group);
  sub.add_option("--drain-timeout", command.drain_timeout, "Seconds for requests under way after SIGTERM or Ctrl-C")
      .in_range(0, 86'400)
      .show_default()
      .group(group);
  sub.add_flag("--embeddings", command.embeddings, "Give vectors of texts, also by a model that continues them")
      .group(group);
}

}  // namespace

void add_serve(Command app, Action& action) {
  auto sub = app.add_subcommand("serve", "Answer requests over HTTP, as OpenAI's API has them");
  auto command = std::make_shared<ServeCommand>();
  add_inference_flags(sub, command->flags);
  add_http_flags(sub, *command);
  add_request_flags(sub, *command);
  add_chat_flags(sub, command->chat);
  sub.footer(
      "Endpoints: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models, /v1/streams/ID, "
      "/v1/cluster, /tokenize, /detokenize, /health, /health/ready, /metrics (docs/serving.md). Examples:\n"
      "  butterfly serve -m models/demo.gguf\n"
      "  butterfly serve -m model.gguf --workers 127.0.0.1:7001,127.0.0.1:7002 --parallel 16\n"
      "  butterfly serve -m model.gguf --listen 0.0.0.0:8443 --api-keys keys --tls-cert cert.pem --tls-key key.pem\n"
      "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"ROMEO:\", \"max_tokens\": 50}'");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
