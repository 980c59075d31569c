// butterfly cluster status: how nodes are, what they work on, and how fast the links between them are.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "butterfly/base/json.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/base/units.h"
#include "butterfly/cluster/control/node_status.h"
#include "butterfly/plan/cost/load_balance.h"
#include "cluster/cluster.h"
#include "commands.h"
#include "shared/access.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kAskMs = 3000;
constexpr std::int64_t kLinksMs = 60'000;

struct StatusCommand {
  std::vector<std::string> addresses;
  AccessOptions access_options;
  NodeAccess access;
  bool links = false;
  bool fresh = false;
  bool json = false;
  bool watch = false;
  int every_s = 2;
};

/// What was learnt about one address.
struct Row {
  std::string address;  // as it was named, perhaps by a coordinator: for people only as shown()
  NodeStatus status;
  std::string error;  // empty: it answered
  std::vector<LinkStatus> links;

  std::string shown() const { return one_line(address); }
};

std::vector<Row> ask_all(const std::vector<std::string>& addresses, const NodeAccess& access) {
  std::vector<Row> rows(addresses.size());
  std::vector<std::jthread> asking;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    asking.emplace_back([&, i] {
      rows[i].address = addresses[i];
      auto status = ask_status(addresses[i], access, after_ms(kAskMs));
      if (status) {
        rows[i].status = std::move(*status);
      } else {
        rows[i].error = status.error().message;
      }
    });
  }
  return rows;
}

/// The nodes that were named and those that the named coordinators know.
std::vector<Row> look(const StatusCommand& command) {
  std::vector<Row> rows = ask_all(command.addresses, command.access);
  std::vector<std::string> more;
  for (const Row& row : rows) {
    if (!row.status.coordinator) continue;
    for (const MemberStatus& member : row.status.coordinator->members) {
      const auto& named = command.addresses;
      const std::string& address = member.node.address;
      if (std::ranges::find(named, address) == named.end()) more.push_back(address);
    }
  }
  std::ranges::move(ask_all(more, command.access), std::back_inserter(rows));
  if (!command.links) return rows;
  // One pair at a time: two measurements at once would measure each other.
  std::vector<std::string> workers;
  for (const Row& row : rows) {
    if (row.status.worker) workers.push_back(row.address);
  }
  for (Row& row : rows) {
    if (!row.status.worker) continue;
    std::vector<std::string> others;
    std::ranges::copy_if(workers, std::back_inserter(others), [&](const auto& one) { return one != row.address; });
    auto links = ask_links(row.address, {.to = others, .fresh = command.fresh}, command.access, after_ms(kLinksMs));
    if (links) {
      row.links = std::move(*links);
    } else {
      row.links.push_back({.to = "others", .error = links.error().message});
    }
  }
  return rows;
}

/// "trains gpt2-124m: rank 1 of 3, step 40/500, loss 4.1022, 12 % of the time waiting for other ranks".
std::string describe(const RankStatus& rank) {
  if (rank.ranks == 0) return fmt::format("trains {}: joins", rank.model);
  std::string text = fmt::format("trains {}: rank {} of {}", rank.model, rank.rank, rank.ranks);
  if (rank.steps == 0) return text;
  const double whole_s = rank.computing_s + rank.waiting_s;
  return text + fmt::format(", step {}/{}, loss {:.4f}, {:.0f} % of the time waiting for other ranks", rank.step,
                            rank.steps, rank.loss, whole_s > 0.0 ? 100.0 * rank.waiting_s / whole_s : 0.0);
}

std::string share_of(const WorkerStatus& worker) {
  if (worker.measuring) return "measures its speed";
  if (worker.training) return describe(*worker.training);
  if (worker.model.empty()) return worker.coordinator.empty() ? "free" : "stands by";
  std::vector<std::string> layers;
  bool embedding = false, head = false;
  for (const StageAssignment& stage : worker.stages) {
    const HeldSlices& slices = stage.slices;
    layers.push_back(fmt::format("{}-{}{}", stage.first_layer, stage.last_layer - 1,
                                 slices.whole() ? "" : fmt::format(" ({})", slices.text())));
    embedding = embedding || stage.embedding;
    head = head || stage.head;
  }
  return fmt::format("{} layers {}{}{}", worker.model, fmt::join(layers, ", "), embedding ? " + embedding" : "",
                     head ? " + head" : "");
}

double load_of(const WorkerStatus& worker) {
  return worker.uptime_s > 0 ? worker.busy_s / worker.uptime_s : 0;
}

/// "64 B in 31.0 us, 8.0 KiB in 35.2 us, 1.0 MiB in 640.1 us, 1.31 GB/s, 12 s ago".
std::string describe(const LinkStatus& link) {
  if (!link.error.empty()) return link.error;
  std::string text;
  for (const LinkTime& time : link.times) text += fmt::format("{} in {:.1f} us, ", format_bytes(time.bytes), time.us);
  return text + fmt::format("{:.2f} GB/s, {:.0f} s ago", link.link.gb_per_s, link.age_s);
}

/// "1 s: CPU 0.3 %, 12.1 MiB, 0 B/s in, 0 B/s out; 10 s: ...".
std::string describe(const std::vector<UsageWindow>& usage) {
  std::string text;
  for (const UsageWindow& window : usage) {
    text += fmt::format("{}{:.0f} s: CPU {:.1f} %, {}, {}/s in, {}/s out", text.empty() ? "" : "; ", window.seconds,
                        100 * window.cpu, format_bytes(window.memory_bytes),
                        format_bytes(static_cast<std::uint64_t>(window.received_bytes_per_s)),
                        format_bytes(static_cast<std::uint64_t>(window.sent_bytes_per_s)));
  }
  return text;
}

/// Of the workers of one coordinator over their longest span of time; 0 where fewer than two have worked.
double balance_of(const CoordinatorStatus& coordinator, const std::vector<Row>& rows) {
  std::vector<double> busy;
  for (const Row& row : rows) {
    const auto& worker = row.status.worker;
    if (!worker || (worker->model.empty() && !worker->training) || row.status.worker->usage.empty()) continue;
    const auto is_row = [&](const MemberStatus& member) { return member.node.address == row.address; };
    if (std::ranges::any_of(coordinator.members, is_row)) busy.push_back(row.status.worker->usage.back().busy);
  }
  return busy.size() > 1 ? load_balance_factor(busy) : 0;
}

std::string table(const std::vector<Row>& rows) {
  std::string text = fmt::format("{:<22} {:>5} {:>7} {:>10} {:>10} {:>6} {:>9}  {}\n", "node", "epoch", "threads",
                                 "memory", "GB/s read", "load", "steps", "work");
  for (const Row& row : rows) {
    if (row.status.worker) {
      const WorkerStatus& w = *row.status.worker;
      text +=
          fmt::format("{:<22} {:>5} {:>7} {:>10} {:>10.1f} {:>5.0f}% {:>9}  {}\n", row.shown(), w.epoch.value,
                      w.node.threads, format_bytes(w.node.memory_bytes), w.node.memory_read_gb_per_s, 100 * load_of(w),
                      w.training ? static_cast<std::uint64_t>(w.training->step) : w.steps, one_line(share_of(w)));
    } else if (row.status.coordinator) {
      const CoordinatorStatus& c = *row.status.coordinator;
      text += fmt::format("{:<22} {:>5} {:>7} coordinator {}, {} workers{}\n", row.shown(), c.epoch.value, "",
                          one_line(c.name), c.members.size(),
                          c.last_change.empty() ? "" : "; last: " + one_line(c.last_change));
      if (const double balance = balance_of(c, rows); balance > 0) {
        text += fmt::format("{:<22} {:>5} {:>7} load_balance_factor {:.2f}\n", "", "", "", balance);
      }
      for (const MemberStatus& member : c.members) {
        if (member.phi < 1 && !member.leaving) continue;
        text += fmt::format("{:<22} {:>5} {:>7} {} {}\n", "", "", "", one_line(member.node.address),
                            member.leaving ? "leaves" : fmt::format("is silent, phi {:.1f}", member.phi));
      }
    } else {
      text += fmt::format("{:<22} {:>5} does not answer: {}\n", row.shown(), "-", one_line(row.error));
    }
  }
  for (const Row& row : rows) {
    const auto& usage =
        row.status.worker ? row.status.worker->usage : row.status.coordinator.value_or(CoordinatorStatus{}).usage;
    if (!usage.empty()) text += fmt::format("{} last {}\n", row.shown(), describe(usage));
  }
  for (const Row& row : rows) {
    for (const LinkStatus& link : row.links) {
      text += fmt::format("{} -> {}: {}\n", row.shown(), one_line(link.to), one_line(describe(link)));
    }
  }
  return text;
}

nlohmann::ordered_json to_json(const NodeDescriptor& node) {
  nlohmann::ordered_json j{{"name", node.name},
                           {"isa", to_string(node.isa)},
                           {"threads", node.threads},
                           {"memory_bytes", node.memory_bytes},
                           {"memory_read_gb_per_s", node.memory_read_gb_per_s},
                           {"fp32_gflops", node.fp32_gflops},
                           {"int8_gops", node.int8_gops},
                           {"matmuls", nlohmann::ordered_json::array()}};
  for (const MatmulRate& rate : node.matmuls) {
    j["matmuls"].push_back({{"type", rate.type},
                            {"decode_gb_per_s", rate.decode_gb_per_s},
                            {"prefill_gflops", rate.prefill_gflops},
                            {"cached_gb_per_s", rate.cached_gb_per_s}});
  }
  return j;
}

nlohmann::ordered_json to_json(const std::vector<UsageWindow>& usage) {
  nlohmann::ordered_json j = nlohmann::ordered_json::array();
  for (const UsageWindow& window : usage) {
    j.push_back({{"seconds", window.seconds},
                 {"cpu", window.cpu},
                 {"busy", window.busy},
                 {"memory_bytes", window.memory_bytes},
                 {"received_bytes_per_s", window.received_bytes_per_s},
                 {"sent_bytes_per_s", window.sent_bytes_per_s}});
  }
  return j;
}

nlohmann::ordered_json to_json(const Row& row, const std::vector<Row>& rows) {
  nlohmann::ordered_json j{{"address", row.address}, {"answers", row.error.empty()}};
  if (!row.error.empty()) j["error"] = row.error;
  if (row.status.worker) {
    const WorkerStatus& w = *row.status.worker;
    j["role"] = "worker";
    j["node"] = to_json(w.node);
    j["coordinator"] = w.coordinator;
    j["epoch"] = w.epoch.value;
    j["model"] = w.model;
    if (!w.model.empty()) {
      for (const StageAssignment& stage : w.stages) {
        j["stages"].push_back({{"first_layer", stage.first_layer},
                               {"last_layer", stage.last_layer - 1},
                               {"first_slice", stage.slices.first},
                               {"last_slice", stage.slices.last - 1},
                               {"first_expert_slice", stage.slices.experts.first},
                               {"last_expert_slice", stage.slices.experts.last - 1}});
      }
      j["memory_bytes"] = w.memory_bytes;
    }
    if (w.training) {
      j["training"] = {{"model", w.training->model},
                       {"rank", w.training->rank},
                       {"ranks", w.training->ranks},
                       {"step", w.training->step},
                       {"steps", w.training->steps},
                       {"loss", w.training->loss},
                       {"computing_s", w.training->computing_s},
                       {"waiting_s", w.training->waiting_s}};
    }
    j["steps"] = w.steps;
    j["busy_s"] = w.busy_s;
    j["uptime_s"] = w.uptime_s;
    j["measuring"] = w.measuring;
    j["usage"] = to_json(w.usage);
  } else if (row.status.coordinator) {
    const CoordinatorStatus& c = *row.status.coordinator;
    j["role"] = "coordinator";
    j["name"] = c.name;
    j["epoch"] = c.epoch.value;
    j["last_change"] = c.last_change;
    j["load_balance_factor"] = balance_of(c, rows);
    j["usage"] = to_json(c.usage);
    for (const MemberStatus& member : c.members) {
      j["members"].push_back({{"address", member.node.address}, {"phi", member.phi}, {"leaving", member.leaving}});
    }
  }
  for (const LinkStatus& link : row.links) {
    nlohmann::ordered_json one{{"to", link.to}};
    if (link.error.empty()) {
      one["latency_us"] = link.link.latency_us;
      one["gb_per_s"] = link.link.gb_per_s;
      for (const LinkTime& time : link.times) one["times"].push_back({{"bytes", time.bytes}, {"us", time.us}});
      one["age_s"] = link.age_s;
    } else {
      one["error"] = link.error;
    }
    j["links"].push_back(one);
  }
  return j;
}

Result<int> run(StatusCommand& command) {
  BF_ASSIGN_OR_RETURN(command.access, open_access(command.access_options));
  std::mutex mutex;
  std::condition_variable_any pause;
  for (;;) {
    const std::vector<Row> rows = look(command);
    if (command.json) {
      nlohmann::ordered_json all = nlohmann::ordered_json::array();
      for (const Row& row : rows) all.push_back(to_json(row, rows));
      std::printf("%s\n", dump_json(all, {.indent = command.watch ? -1 : 2, .ascii = true}).c_str());
    } else {
      std::printf("%s", table(rows).c_str());
    }
    std::fflush(stdout);
    if (!command.watch) {
      const bool silent = std::ranges::any_of(rows, [](const Row& row) { return !row.error.empty(); });
      return silent ? kExitBadInput : kExitOk;
    }
    std::unique_lock lock(mutex);
    if (pause.wait_for(lock, interrupted(), std::chrono::seconds(command.every_s),
                       [] { return interrupted().stop_requested(); })) {
      return kExitOk;
    }
    if (!command.json) std::printf("\n");
  }
}

}  // namespace

void add_cluster_status(Command cluster, Action& action) {
  auto sub = cluster.add_subcommand("status", "How nodes are: their work, load, memory, speed, and links");
  auto command = std::make_shared<StatusCommand>();
  sub.add_option("nodes", command->addresses,
                 "HOST:PORT of workers, or of a coordinator (generate --join-at), which names its workers")
      .required()
      .comma_separated();
  auto links = sub.add_flag("--links", command->links,
                            "Every worker's links to the others, as measured in the last ten minutes or else now");
  sub.add_flag("--fresh", command->fresh, "Measure the links now").needs(links);
  sub.add_flag("--json", command->json, "A JSON array on stdout instead of the table");
  auto watch = sub.add_flag("--watch", command->watch, "Look again and again, until Ctrl-C");
  sub.add_option("--every", command->every_s, "Seconds between two looks")
      .in_range(1, 3600)
      .show_default()
      .needs(watch);
  add_access_options(sub, command->access_options);
  sub.footer("Exit code 2 when a node does not answer.");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
