#include "butterfly/infer/config/worker_config.h"

#include "butterfly/base/units.h"
#include "butterfly/infer/config/access_keys.h"

namespace butterfly {
namespace {

constexpr const char* kGroup = "The worker";

#define BF_AT(member) BF_MEMBER(WorkerConfig, member)

Status set_memory(WorkerConfig& config, const KeyValue& value) {
  const std::string& text = std::get<std::string>(value);
  config.memory_bytes = parse_bytes(text);
  if (text.empty() || config.memory_bytes > 0) return {};
  return make_error(ErrorCode::kInvalidArgument, "expected a size such as 4G or 512M");
}

KeyValue get_memory(const WorkerConfig& config) {
  return config.memory_bytes == 0 ? std::string() : fmt::format("{}", config.memory_bytes);
}

Status set_shared_memory(WorkerConfig& config, const KeyValue& value) {
  config.server.shared_memory = std::get<bool>(value) ? SharedMemoryUse::kAllowed : SharedMemoryUse::kForbidden;
  return {};
}

KeyValue get_shared_memory(const WorkerConfig& config) {
  return config.server.shared_memory == SharedMemoryUse::kAllowed;
}

void add_place(std::vector<ConfigKey<WorkerConfig>>& keys) {
  keys.push_back(value_key({.name = "listen",
                            .help = "HOST:PORT; port 0: the system chooses; other than loopback only with credentials "
                                    "or insecure",
                            .group = kGroup},
                           BF_AT(server.listen)));
  keys.push_back(
      value_key({.name = "join",
                 .help = "HOST:PORT of a coordinator (generate --join-at HOST:PORT) that shall use this worker",
                 .group = kGroup},
                BF_AT(server.join)));
  add_access_keys(keys, kGroup, BF_AT(access));
}

}  // namespace

const std::vector<ConfigKey<WorkerConfig>>& worker_keys() {
  static const std::vector<ConfigKey<WorkerConfig>> keys = [] {
    std::vector<ConfigKey<WorkerConfig>> all;
    add_place(all);
    all.push_back(value_key({.name = "threads",
                             .help = "Threads to compute with; 0: all cores",
                             .group = kGroup,
                             .letter = 't',
                             .range = {0, 1024}},
                            BF_AT(threads)));
    all.push_back(value_key({.name = "model_dir",
                             .help = "Take weights, and tokens to train on, from a file below this folder that has the "
                                     "coordinator's content",
                             .group = kGroup},
                            BF_AT(server.model_directory)));
    all.push_back(value_key({.name = "packed_cache",
                             .help = "Folder for packed weights: a worker that starts again maps them, and no "
                                     "coordinator has to send them. Its files may be deleted at any time",
                             .group = kGroup},
                            BF_AT(packed_folder)));
    all.push_back(
        config_key<WorkerConfig>({.name = "memory",
                                  .help = "Memory that a plan may use here, such as 4G; empty: what is available",
                                  .group = kGroup},
                                 get_memory, set_memory));
    all.push_back(value_key({.name = "emulate",
                             .help = "Play a machine of this share of one thread's speed, to try a plan for slower "
                                     "nodes; with threads 1",
                             .group = kGroup,
                             .range = {0.01, 1}},
                            BF_AT(emulate)));
    all.push_back(config_key<WorkerConfig>(
        {.name = "shared_memory",
         .help = "Reach members of a tensor group, and other ranks, on this host in memory, not over connections",
         .group = kGroup},
        get_shared_memory, set_shared_memory));
    all.push_back(value_key({.name = "train", .help = "Take part in training runs (train --workers)", .group = kGroup},
                            BF_AT(train)));
    return all;
  }();
  return keys;
}
#undef BF_AT

Status validate(const WorkerConfig& config) {
  if (config.emulate < 1.0 && config.threads != 1) {
    return make_error(ErrorCode::kInvalidArgument, "--emulate {} needs --threads 1, not {}", config.emulate,
                      config.threads);
  }
  return validate(config.access);
}

}  // namespace butterfly
