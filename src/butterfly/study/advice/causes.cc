#include "butterfly/study/advice/causes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "butterfly/base/units.h"

namespace butterfly::study {
namespace {

std::string percent_text(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

std::string kind_name(const WorkloadStudy& work) {
  return std::string(to_string(work.kind));
}

bool trains(const WorkloadStudy& work) {
  return work.kind == WorkKind::kTrain;
}

double busy_share(const WorkloadStudy& work) {
  const TrackTime& track = main_track(work);
  return track.wall_s > 0.0 ? track.busy_s / track.wall_s : 0.0;
}

/// What mapping and clearing a page takes at least, and, with telling the other threads' CPUs that it is gone, at most.
constexpr double kFaultSeconds = 0.5e-6, kFaultSecondsMost = 8e-6;

void add_allocations(const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kFaultsWorthSaying = 64, kMissesWorthSaying = 1.0;
  constexpr int kSteps = 5;  // the first ones take what later ones keep
  const Allocations& found = work.allocations;
  if (work.step_s.count < kSteps) return;
  const double least_s = found.faults_per_step * kFaultSeconds, most_s = found.faults_per_step * kFaultSecondsMost;
  const double faults_s = std::clamp(found.system_s_per_step, least_s, most_s);
  const double gain = work.step_s.mean > 0.0 ? faults_s / work.step_s.mean : 0.0;
  const bool faults = found.faults_per_step >= kFaultsWorthSaying && gain >= 0.02;
  if (!faults && found.pool_misses_per_step < kMissesWorthSaying) return;
  causes.push_back(
      {.id = "allocation_in_loop",
       .heading = Heading::kMemory,
       .workload = kind_name(work),
       .what = fmt::format("each step maps {:.0f} new pages, takes {:.1f} buffers that no earlier step "
                           "left, and spends {} in the kernel",
                           found.faults_per_step, found.pool_misses_per_step, format_seconds(found.system_s_per_step)),
       .remedy = trains(work) ? "keep shapes the same from step to step (--seq, --micro-batch), and buffers "
                                "between steps"
                              : "keep buffers between steps; MALLOC_TRIM_THRESHOLD_=1073741824 and "
                                "MALLOC_MMAP_THRESHOLD_=1073741824 keep them in the heap",
       .effort = Effort::kSetup,
       .gain = gain});
}

/// Of the time: what operations take beyond what their work needs. Handing them out cannot take more.
double lost_share(const WorkloadStudy& work) {
  double lost = 0.0;
  for (const OperatorTime& one : work.operators) {
    if (one.kind == "matmul" || one.kind == "operation") lost += one.share * (1.0 - std::min(1.0, one.share_of_roof));
  }
  return lost;
}

double launch_share(const WorkloadStudy& work) {
  return std::min(work.launches.share, lost_share(work));
}

/// One thread hands nothing out, but computes alone.
double gain_of_one_thread(const WorkloadStudy& work, const ProcessUse* process) {
  constexpr double kReached = 0.9;  // of the other threads, while they compute
  const double threads = process == nullptr ? 0.0 : std::min(process->threads, std::max(process->cpus, 1.0));
  return threads < 2.0 ? 0.0 : 1.0 - (1.0 - launch_share(work)) * (1.0 + kReached * (threads - 1.0));
}

/// Of one step's sequences, as the matmuls see them; 0: unknown.
double rows_of_matmuls(const Study& study, const WorkloadStudy& work) {
  const double rows = static_cast<double>(number_fact(study, "train.micro_batch")) * number_fact(study, "train.seq");
  return rows > 0.0 ? rows : work.efficiency.tokens_per_step;
}

void add_launches(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kWorthSaying = 0.10;
  const double share = launch_share(work);
  if (share < kWorthSaying) return;
  const auto process = std::ranges::find(study.processes, main_track(work).process, &ProcessUse::name);
  const bool fuses_all = std::ranges::all_of(kFusions, [&study](std::string_view one) { return fuses(study, one); });
  const double alone = gain_of_one_thread(work, process == study.processes.end() ? nullptr : &*process);
  causes.push_back(
      {.id = "launch_overhead",
       .heading = Heading::kLaunchOverhead,
       .workload = kind_name(work),
       .what = fmt::format("{:.0f} launches a step take {} of {}", work.launches.per_step,
                           format_seconds(share * work.step_s.mean), format_seconds(work.step_s.mean)),
       .remedy = alone > 0.0 ? "--threads 1: one thread launches nothing"
                 : trains(work)
                     ? (fuses_all ? "a larger --micro-batch: as many launches for more tokens"
                                  : "--fusion all: fewer operations to launch")
                     : "several texts at once (--prompts, serve --parallel): as many launches for more tokens",
       .effort = Effort::kFlag,
       .gain = alone > 0.0 ? alone : share * 0.5});
}

void add_variance(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kWorthSaying = 0.25;
  const Summary& step = work.step_s;
  if (study.quality.trust != Trust::kQuiet) return;                              // the disturbance is told as such
  if (work.kind == WorkKind::kPrefill || work.kind == WorkKind::kMixed) return;  // as different as prompts are
  if (step.count < 10 || step.mean <= 0.0 || step.deviation / step.mean < kWorthSaying) return;
  causes.push_back(
      {.id = "step_variance",
       .heading = Heading::kSteadiness,
       .workload = kind_name(work),
       .what = fmt::format("steps take from {} to {}; their deviation is {} of the mean", format_seconds(step.least),
                           format_seconds(step.most), percent_text(step.deviation / step.mean)),
       .remedy = "look at the timeline for what comes at those steps: checkpoints, evaluation, other "
                 "programs, steps of other sizes",
       .effort = Effort::kSetup,
       .gain = std::max(0.0, 1.0 - step.median / step.mean)});
}

/// What a step gains where each operation has `factor` times as many rows: what is fixed in each is paid less often,
/// and weights are read, and their gradients written, for more of them.
double gain_of_more_rows(const WorkloadStudy& work, double factor) {
  // What they reach with a thousand rows, and waits between them take little: 0.82 to 1.05 of the measured peak, of
  // their roofs 0.11 to 0.26 and 0.32 to 1 (`study report` of such a run).
  constexpr double kMatmulsReach = 0.9, kAttentionReaches = 0.15, kOthersReach = 0.4;
  double gain = 0.0;
  for (const OperatorTime& one : work.operators) {
    if (one.kind == "matmul" && one.share_of_peak > 0.0) {
      gain += one.share * std::max(0.0, 1.0 - one.share_of_peak / kMatmulsReach);
    }
    if (one.kind == "operation" && one.share_of_roof > 0.0) {
      const double reach = one.name.starts_with("attention") ? kAttentionReaches : kOthersReach;
      gain += one.share * std::max(0.0, 1.0 - one.share_of_roof / reach);
    }
  }
  return gain * (1.0 - 1.0 / factor);
}

void add_small_batch(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kWorthSaying = 0.10;
  const double rows = rows_of_matmuls(study, work);
  if (!trains(work) || rows <= 0.0 || rows >= kManyRows) return;
  const int now = number_fact(study, "train.micro_batch"), larger = larger_micro_batch(study);
  const double factor = larger > now && now > 0 ? static_cast<double>(larger) / now : kManyRows / rows;
  const double gain = gain_of_more_rows(work, factor);
  if (gain < kWorthSaying) return;
  causes.push_back(
      {.id = "small_batch",
       .heading = Heading::kUtilisation,
       .workload = kind_name(work),
       .what = fmt::format("matmuls have {:.0f} rows and take {} of the time", rows, percent_text(work.matmul_share)),
       .remedy = larger > now ? fmt::format("--micro-batch {} (train --find-batch says what fits)", larger)
                              : "a larger --batch and --micro-batch, or a longer --seq: more rows at once",
       .effort = Effort::kFlag,
       .gain = gain});
}

/// The matmul that would gain most at what large ones reach.
void add_slow_operation(const Study& study, const WorkloadStudy& work, std::vector<Cause>& causes) {
  constexpr double kReachable = 0.7, kSlow = 0.35, kWorthSaying = 0.10;
  if (trains(work) && rows_of_matmuls(study, work) < kManyRows) return;  // told as a small batch
  const OperatorTime* worst = nullptr;
  double most = 0.0;
  for (const OperatorTime& one : work.operators) {
    if (one.share_of_roof <= 0.0 || one.share_of_roof > kSlow || one.kind != "matmul") continue;
    const double gain = one.share * (1.0 - one.share_of_roof / kReachable);
    if (gain > most) {
      most = gain;
      worst = &one;
    }
  }
  if (worst == nullptr || most < kWorthSaying) return;
  causes.push_back(
      {.id = "low_utilisation",
       .heading = Heading::kUtilisation,
       .workload = kind_name(work),
       .what = fmt::format("{} takes {} of the time at {} of its roof ({:.1f} GFLOP/s)", worst->name,
                           percent_text(worst->share), percent_text(worst->share_of_roof), worst->gflops_per_s),
       .remedy = trains(work) ? "a larger --micro-batch, --precision bf16 where the machine has it"
                              : "several texts at once (--prompts, serve --parallel), or fewer --threads",
       .effort = Effort::kFlag,
       .gain = most});
}

double communication_share(const WorkloadStudy& work) {
  double most = work.on_the_way_share;
  for (const TrackTime& track : work.tracks) {
    if (track.scheduler || track.wall_s <= 0.0) continue;
    double share = track.communication_s / track.wall_s;
    for (const PhaseTime& phase : track.phases) share += phase.name == "wait_gradients" ? phase.share : 0.0;
    most = std::max(most, share);
  }
  return most;
}

/// Of the step, where each stage or rank got work by its speed: those that take turns, as the stages of one text do,
/// add up, others go side by side.
double gain_of_balance(const WorkloadStudy& work) {
  double busy = 0.0, most = 0.0, rate = 0.0, speed = 0.0;
  int count = 0;
  for (const TrackTime& track : work.tracks) {
    if (track.scheduler || track.wall_s <= 0.0) continue;
    const double share = track.busy_s / track.wall_s;
    if (share <= 0.0 || track.flops <= 0.0) return busy_share(work) * (1.0 - 1.0 / work.load_balance_factor);
    busy += share;
    most = std::max(most, share);
    rate += track.flops / track.wall_s;
    speed += track.flops / track.busy_s;
    ++count;
  }
  constexpr double kInTurn = 1.05;
  return busy <= kInTurn ? busy - count * rate / speed : most - rate / speed;
}

struct HostUse {
  double threads = 0.0, cpus = 0.0, usable = 0.0;
  double wanted = 0.0;  // CPUs that its threads would use if each had one
  double run_queue_share = 0.0;
};

std::map<std::string, HostUse> hosts_of(const Study& study) {
  std::map<std::string, HostUse> hosts;
  for (const ProcessUse& process : study.processes) {
    HostUse& host = hosts[process.host];
    host.threads += process.threads;
    host.cpus = std::max(host.cpus, process.cpus);
    host.usable = std::max(host.usable, process.usable_cpus > 0.0 ? process.usable_cpus : process.cpus);
    host.wanted += process.cpus_used / std::max(1.0 - process.run_queue_share, 0.05);
    host.run_queue_share = std::max(host.run_queue_share, process.run_queue_share);
  }
  return hosts;
}

/// Threads that wait for each other although nobody else has the CPUs. Waits between turns, on CPUs that are free for
/// the rest of the time, are none.
void add_shared_cpus(const Study& study, std::vector<Cause>& causes) {
  constexpr double kQueue = 0.10, kCrowded = 1.05;
  constexpr double kOfWaiting = 0.5;  // threads that wait less at barriers, on as many CPUs
  for (const auto& [name, host] : hosts_of(study)) {
    if (host.run_queue_share < kQueue || host.wanted < kCrowded * host.usable) continue;
    const bool kept = host.usable > 0.0 && host.usable < host.cpus;
    const double speed = std::min(host.wanted, host.cpus) / std::max(host.usable, 1.0);
    causes.push_back(
        {.id = "threads_share_cpus",
         .heading = Heading::kPlacement,
         .workload = {},
         .what = fmt::format("threads of {} waited {} of the time in which they wanted a CPU: {:.1f} CPUs wanted, "
                             "{:.0f} of {:.0f} usable",
                             name.empty() ? "the machine" : name, percent_text(host.run_queue_share), host.wanted,
                             host.usable, host.cpus),
         .remedy = kept ? fmt::format("give the process all {:.0f} CPUs (taskset, its container, its job)", host.cpus)
                        : fmt::format("fewer nodes on this machine, or --threads {:.0f} in all", host.cpus),
         .effort = kept ? Effort::kSetup : Effort::kFlag,
         .gain = kept ? 1.0 - 1.0 / speed : kOfWaiting * host.run_queue_share});
  }
}

}  // namespace

int number_fact(const Study& study, const std::string& name) {
  const auto found = study.facts.find(name);
  return found == study.facts.end() ? 0 : std::atoi(found->second.c_str());
}

int larger_micro_batch(const Study& study) {
  const int now = number_fact(study, "train.micro_batch"), seq = std::max(number_fact(study, "train.seq"), 1);
  const int most = number_fact(study, "train.global_batch") / std::max(number_fact(study, "ranks"), 1);
  if (now < 1) return 0;
  int larger = now;
  while (2 * larger <= most && (larger == now || larger * seq < static_cast<int>(kManyRows))) larger *= 2;
  return larger > now ? larger : 0;
}

bool fuses(const Study& study, std::string_view what) {
  const auto fact = study.facts.find("train.fusion");
  const auto optimizer = study.facts.find("train.optimizer");
  if (what == "adamw" && optimizer != study.facts.end() && optimizer->second != what) return true;
  return fact == study.facts.end() || fact->second.find(what) != std::string::npos;
}

double share_of(const WorkloadStudy& work, std::string_view operation) {
  double share = 0.0;
  for (const OperatorTime& one : work.operators) {
    const bool same = one.name == operation || (one.name.starts_with(operation) && one.name.size() > operation.size() &&
                                                one.name[operation.size()] == ' ');
    if (same) share += one.share;
  }
  return share;
}

const TrackTime& main_track(const WorkloadStudy& work) {
  const auto key = [](const TrackTime& track) { return std::pair(!track.scheduler, track.busy_s); };
  return *std::ranges::max_element(work.tracks, {}, key);
}

std::vector<Cause> compute_causes(const Study& study, const WorkloadStudy& work) {
  std::vector<Cause> causes;
  add_allocations(work, causes);
  add_launches(study, work, causes);
  add_variance(study, work, causes);
  add_small_batch(study, work, causes);
  add_slow_operation(study, work, causes);
  return causes;
}

std::vector<Cause> communication_causes(const Study&, const WorkloadStudy& work) {
  constexpr double kThin = 0.15, kBound = 0.5;
  // Of the bytes: as bf16, and what zstd packs activations and logits by.
  constexpr double kHalved = 0.5, kPacked = 0.1;
  std::vector<Cause> causes;
  const double share = communication_share(work);
  constexpr double kBalanceWorth = 0.03;
  const double balance = work.straggler.empty() ? 0.0 : gain_of_balance(work);
  if (balance >= kBalanceWorth) {
    causes.push_back(
        {.id = "straggler",
         .heading = Heading::kPlacement,
         .workload = kind_name(work),
         .what = fmt::format("{} is {:.2f} times as busy as the mean of {} (load_balance_factor)", work.straggler,
                             work.load_balance_factor, std::ranges::count(work.tracks, false, &TrackTime::scheduler)),
         .remedy = trains(work) ? "--parallel.speeds gives each rank a share by its speed"
                                : "--split balanced gives each node layers by its measured speed; auto does, too",
         .effort = Effort::kFlag,
         .gain = balance});
  }
  // Waiting for a straggler is told as such.
  if (share >= kThin && balance < kBalanceWorth) {
    double bytes = 0.0;
    for (const WireUse& use : work.wire) bytes += use.sent_per_step;
    causes.push_back({.id = share >= kBound ? "communication_bound" : "thin_link",
                      .heading = Heading::kCommunication,
                      .workload = kind_name(work),
                      .what = fmt::format("{} of the time goes to communication that nothing hides; {} leave a step",
                                          percent_text(share), format_bytes(static_cast<std::uint64_t>(bytes))),
                      .remedy = trains(work) ? "--compression bf16 for gradients, a larger --batch for each exchange, "
                                               "or fewer --ranks"
                                             : "--compress zstd (same text), --wire-type f16 (half of the activations' "
                                               "bytes, another text), or fewer nodes: butterfly plan says which",
                      .effort = Effort::kFlag,
                      .gain = (trains(work) ? kHalved : kPacked) * share});
  }
  return causes;
}

std::vector<Cause> machine_causes(const Study& study) {
  constexpr double kIdle = 0.75;
  std::vector<Cause> causes;
  double busy = 0.0;
  for (const WorkloadStudy& work : study.workloads) busy = std::max(busy, busy_share(work));
  const double foreign = study.quality.foreign_cpus;
  for (const auto& [host, use] : hosts_of(study)) {
    const double threads = use.threads, cpus = use.usable;
    if (threads < 1 || cpus < 2 || threads > kIdle * cpus || foreign > 0.25 * cpus) continue;
    constexpr double kReached = 0.8;  // of the further threads
    const double speed = 1.0 + kReached * (cpus / threads - 1.0);
    causes.push_back({.id = "idle_cpus",
                      .heading = Heading::kPlacement,
                      .workload = {},
                      .what = fmt::format("{:.0f} of {:.0f} CPUs of {} have a thread", threads, cpus,
                                          host.empty() ? "the machine" : host),
                      .remedy = fmt::format("--threads {:.0f} (0: all)", cpus),
                      .effort = Effort::kFlag,
                      .gain = busy * (1.0 - 1.0 / speed)});
  }
  double most_cpus = 1.0;
  for (const ProcessUse& process : study.processes) most_cpus = std::max(most_cpus, process.cpus);
  const bool others =
      study.quality.trust != Trust::kQuiet && (foreign >= 0.10 * most_cpus || study.quality.stolen_share >= 0.02);
  if (others) {
    causes.push_back({.id = "foreign_load",
                      .heading = Heading::kPlacement,
                      .workload = {},
                      .what = fmt::format("other programs used {:.2f} CPUs, the host took {} of the CPU time, and our "
                                          "threads waited {} of theirs",
                                          foreign, percent_text(study.quality.stolen_share),
                                          percent_text(study.quality.run_queue_share)),
                      .remedy = "end the other programs, or leave them CPUs of their own (taskset) and take fewer "
                                "--threads",
                      .effort = Effort::kSetup,
                      .gain = std::max(study.quality.run_queue_share, study.quality.stolen_share)});
  } else {
    add_shared_cpus(study, causes);
  }
  return causes;
}

std::vector<Cause> memory_causes(const Study& study) {
  constexpr double kLeastGrowth = 16 << 20, kGrowthShare = 0.03, kStraight = 0.8;
  constexpr double kFreeShare = 0.4, kLeastFree = 256 << 20;
  std::vector<Cause> causes;
  for (const MemoryUse& use : study.memory) {
    if (use.growth >= std::max(kLeastGrowth, kGrowthShare * use.peak) && use.growth_fit >= kStraight) {
      causes.push_back({.id = "memory_leak",
                        .heading = Heading::kMemory,
                        .workload = {},
                        .what = fmt::format("{} grows steadily beside its cache, by {} a second and {} while steps ran",
                                            use.process, format_bytes(static_cast<std::uint64_t>(use.growth_per_s)),
                                            format_bytes(static_cast<std::uint64_t>(use.growth))),
                        .remedy =
                            "see who holds it (memory by owner); where no owner does, build/release with heaptrack "
                            "names who took it",
                        .effort = Effort::kCode});
    }
    const double unused = use.heap * use.heap_free_share;
    if (use.heap_free_share >= kFreeShare && unused >= kLeastFree) {
      causes.push_back(
          {.id = "fragmentation",
           .heading = Heading::kFragmentation,
           .workload = {},
           .what = fmt::format("{} holds {} of heap that nobody uses, {} of it", use.process,
                               format_bytes(static_cast<std::uint64_t>(unused)), percent_text(use.heap_free_share)),
           .remedy = "MALLOC_ARENA_MAX=2 in the environment",
           .effort = Effort::kSetup});
    }
  }
  return causes;
}

}  // namespace butterfly::study
