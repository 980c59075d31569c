// A report's section about one kind of step.
#include <fmt/format.h>

#include "butterfly/base/units.h"
#include "butterfly/study/output/form_parts.h"

namespace butterfly::study {
namespace {

constexpr std::size_t kShownOperations = 16;

std::string known(double value, const std::string& text) {
  return value > 0.0 ? text : "-";
}

double per(double sum, int steps) {
  return steps > 0 ? sum / steps : 0.0;
}

ReportTable phase_table(const TrackTime& track) {
  ReportTable table{.title = fmt::format("Phases of {}", track.name),
                    .head = {"phase", "per step", "share of wall time", "of it in no operation"},
                    .rows = {}};
  for (const PhaseTime& phase : track.phases) {
    table.rows.push_back({phase.name, format_seconds(per(phase.seconds, track.steps)), percent_of(phase.share),
                          phase.rest_s > 0.0 ? percent_of(phase.rest_s / phase.seconds) : "-"});
  }
  table.rows.push_back({"together", format_seconds(per(track.wall_s, track.steps)), "100.0 %", ""});
  if (track.hidden_s > 0.0) {
    table.note = fmt::format("Beside it, on other threads: {} of communication per step.",
                             format_seconds(per(track.hidden_s, track.steps)));
  }
  return table;
}

std::vector<std::string> operator_row(const OperatorTime& one, int steps) {
  const bool computes = one.kind == "matmul" || one.kind == "operation";
  std::string bound = "-";
  if (computes && one.ridge > 0.0 && one.flops > 0.0) bound = one.memory_bound ? "memory" : "compute";
  return {one.name,
          one.type.empty() ? "-" : one.type,
          fmt::format("{:.4g}", per(static_cast<double>(one.calls), steps)),
          format_seconds(per(one.own_s, steps)),
          percent_of(one.share),
          known(one.gflops_per_s, fmt::format("{:.1f}", one.gflops_per_s)),
          known(one.gb_per_s, fmt::format("{:.2f}", one.gb_per_s)),
          known(one.intensity, fmt::format("{:.2f}", one.intensity)),
          known(one.share_of_roof, percent_of(one.share_of_roof)),
          bound};
}

ReportTable operator_table(const WorkloadStudy& work, int steps, bool all) {
  ReportTable table{
      .title = all ? "All operations" : "Operations",
      .head = {"operation", "type", "calls", "own time", "share", "GFLOP/s", "GB/s", "FLOP/B", "of roof", "bound by"},
      .rows = {},
      .text_columns = 2,
      .long_one = all};
  double rest = 0.0;
  for (std::size_t i = 0; i < work.operators.size(); ++i) {
    if (all || i < kShownOperations) {
      table.rows.push_back(operator_row(work.operators[i], steps));
    } else {
      rest += work.operators[i].share;
    }
  }
  table.note = fmt::format(
      "Per step of {}. Own time: on the thread that calls, without operations inside. Shares are of the wall time of "
      "all stages or ranks together, the scheduler's of its own. Bytes are counted from shapes, so what a cache serves "
      "counts, too. All matmuls: {}{}.",
      work.tracks[work.lead].name, percent_of(work.matmul_share),
      rest > 0.0 ? fmt::format("; operations that are not shown: {}", percent_of(rest)) : std::string());
  return table;
}

ReportTable step_table(const WorkloadStudy& work) {
  ReportTable table{.title = "Steps",
                    .head = {"", "steps", "mean", "95 % of means", "median", "deviation", "least", "most"},
                    .rows = {}};
  const auto row = [&table](const std::string& name, const Summary& step) {
    table.rows.push_back({name, fmt::format("{}", step.count), format_seconds(step.mean),
                          step.blocks > 1 ? "+- " + percent_of(step.relative()) : "-", format_seconds(step.median),
                          format_seconds(step.deviation), format_seconds(step.least), format_seconds(step.most)});
  };
  row("run", work.step_s);
  if (work.tracks.size() > 1) {
    for (const TrackTime& track : work.tracks) row(track.name, track.step_s);
  }
  table.note = work.selection + ".";
  return table;
}

/// Of each level of memory: what an operation reaches of the time that it needs where its bytes come from there.
ReportTable roof_table(const WorkloadStudy& work) {
  const Efficiency& all = work.efficiency;
  ReportTable table{.title = "Roofs by level of memory",
                    .head = {"operation", "type", "FLOP/B", "bytes a call", "of memory's"},
                    .rows = {},
                    .text_columns = 2,
                    .long_one = true};
  std::string rates = fmt::format("memory {:.1f} GB/s, ridge {:.2f} FLOP/B", all.peak_gb_per_s, all.ridge);
  for (std::size_t level = kCacheLevels; level-- > 0;) {
    if (all.cache_gb_per_s[level] <= 0.0) continue;
    table.head.push_back(fmt::format("of L{}'s", level + 1));
    rates += fmt::format("; L{} {:.0f} GB/s, ridge {:.2f}", level + 1, all.cache_gb_per_s[level],
                         1e-9 * all.peak_flops / all.cache_gb_per_s[level]);
  }
  for (const OperatorTime& one : work.operators) {
    if (one.share_of_roof <= 0.0) continue;
    std::vector<std::string> row{one.name, one.type.empty() ? "-" : one.type,
                                 known(one.intensity, fmt::format("{:.2f}", one.intensity)),
                                 short_bytes(one.bytes / static_cast<double>(std::max<std::uint64_t>(one.calls, 1))),
                                 percent_of(one.share_of_roof)};
    for (std::size_t level = kCacheLevels; level-- > 0;) {
      if (all.cache_gb_per_s[level] > 0.0) row.push_back(percent_of(one.share_of_cache_roof[level]));
    }
    table.rows.push_back(std::move(row));
  }
  table.note = rates +
               ". The larger of FLOPs over their peak and bytes over the level's measured rate, as a share of "
               "the time taken. Bytes are counted from shapes, each operand once: over 100 % of memory's roof "
               "a nearer level served them.";
  return table;
}

ReportTable efficiency_table(const WorkloadStudy& work) {
  const Efficiency& found = work.efficiency;
  ReportTable table{.title = "Arithmetic and memory", .head = {"", "value"}, .rows = {}};
  const auto row = [&table](const std::string& name, double value, const std::string& text) {
    table.rows.push_back({name, value > 0.0 ? text : "unknown"});
  };
  row("FLOPs per step", found.flops_per_step, short_number(found.flops_per_step));
  row("tokens per step", found.tokens_per_step, fmt::format("{:.4g}", found.tokens_per_step));
  row("FLOPs per parameter and token", found.flops_per_parameter_token,
      fmt::format("{:.2f} of {} parameters", found.flops_per_parameter_token, short_number(found.parameters)));
  row("FLOP/s", found.flops_per_s, short_number(found.flops_per_s));
  row("peak FLOP/s", found.peak_flops,
      fmt::format("{} ({})", short_number(found.peak_flops), found.type.empty() ? "f32" : found.type));
  row("MFU", found.mfu, fmt::format("{} ({})", percent_of(found.mfu), mfu_band(found.mfu)));
  if (found.recomputed_per_step > 0.0) row("HFU, with what is computed again", found.hfu, percent_of(found.hfu));
  row("bytes per step, from shapes", found.bytes_per_step, short_bytes(found.bytes_per_step));
  row("arithmetic intensity", found.intensity, fmt::format("{:.2f} FLOP/B", found.intensity));
  row("ridge of this machine", found.ridge, fmt::format("{:.2f} FLOP/B", found.ridge));
  row("memory bandwidth used", found.bandwidth_share,
      fmt::format("{:.2f} of {:.2f} GB/s, {}", found.gb_per_s, found.peak_gb_per_s, percent_of(found.bandwidth_share)));
  if (found.ridge > 0.0 && found.intensity > 0.0) {
    table.rows.push_back({"bound by", found.memory_bound ? "memory" : "arithmetic"});
  }
  table.rows.push_back(
      {"separate projections of queries, keys, values",
       work.projections_per_layer > 0 ? fmt::format("{} per layer", work.projections_per_layer) : "unknown"});
  std::string launches = fmt::format("{:.1f} per step", work.launches.per_step);
  if (work.launches.cost_known) {
    launches +=
        fmt::format(", {} ({})", format_seconds(work.launches.seconds_per_step), percent_of(work.launches.share));
  }
  table.rows.push_back({"kernel launches", launches});
  table.rows.push_back(
      {"buffers from the system", fmt::format("{:.2f} of {:.1f} per step", work.allocations.pool_misses_per_step,
                                              work.allocations.pool_per_step)});
  table.rows.push_back({"pages mapped", fmt::format("{:.1f} per step", work.allocations.faults_per_step)});
  table.note =
      "A multiplication and an addition count as two. MFU counts what the model needs once, HFU all that was "
      "computed; both against the peak measured on this machine for that type.";
  return table;
}

ReportTable track_table(const WorkloadStudy& work) {
  ReportTable table{.title = "Stages and ranks",
                    .head = {"", "busy", "communication", "waiting", "idle", "hidden communication"},
                    .rows = {}};
  for (const TrackTime& track : work.tracks) {
    const auto share = [&track](double seconds) {
      return track.wall_s > 0.0 ? percent_of(seconds / track.wall_s) : std::string("-");
    };
    table.rows.push_back({track.name, share(track.busy_s), share(track.communication_s), share(track.wait_s),
                          share(track.idle_s), share(track.hidden_s)});
  }
  if (work.load_balance_factor > 0.0) {
    table.note = fmt::format("load_balance_factor {:.3f} (most busy over mean){}.", work.load_balance_factor,
                             work.straggler.empty() ? "" : "; straggler: " + work.straggler);
  }
  if (work.on_the_way_share > 0.0) {
    table.note += fmt::format("{}Messages were on their way, and nobody computed, for {} of the scheduler's time.",
                              table.note.empty() ? "" : " ", percent_of(work.on_the_way_share));
  }
  return table;
}

ReportTable layer_table(const WorkloadStudy& work) {
  ReportTable table{.title = "Layers",
                    .head = {"layer", "where", "per step", "share", "FLOPs"},
                    .rows = {},
                    .text_columns = 2,
                    .long_one = true};
  for (const LayerTime& layer : work.layers) {
    table.rows.push_back({fmt::format("{}", layer.layer), layer.track, format_seconds(layer.seconds_per_step),
                          percent_of(layer.share), short_number(layer.flops_per_step)});
  }
  return table;
}

ReportTable flops_table(const WorkloadStudy& work, int steps) {
  ReportTable table{.title = "FLOPs", .head = {"operation", "per step", "share"}, .rows = {}, .long_one = true};
  double all = 0.0;
  for (const OperatorTime& one : work.operators) all += one.flops;
  for (const OperatorTime& one : work.operators) {
    if (one.flops > 0.0)
      table.rows.push_back({one.name, short_number(per(one.flops, steps)), percent_of(one.flops / all)});
  }
  table.rows.push_back({"together", short_number(per(all, steps)), "100.0 %"});
  return table;
}

ReportTable wait_table(const WorkloadStudy& work) {
  ReportTable table{.title = "Who waits for whom",
                    .head = {"waits", "while this is busy", "seconds", "share of its time"},
                    .rows = {},
                    .text_columns = 2};
  for (const WaitFor& wait : work.waits) {
    table.rows.push_back({wait.waiter, wait.other, format_seconds(wait.seconds), percent_of(wait.share)});
  }
  return table;
}

std::vector<ReportTable> link_tables(const WorkloadStudy& work) {
  ReportTable links{.title = "Communication",
                    .head = {"", "what", "messages", "bytes", "time", "of it waiting", "estimate", "GB/s", "bus GB/s"},
                    .rows = {},
                    .text_columns = 2};
  if (!work.estimate_basis.empty()) {
    links.note =
        fmt::format("Estimates are the cost model's, without waiting for others: links of {}.", work.estimate_basis);
  }
  for (const LinkUse& link : work.links) {
    links.rows.push_back({link.process, link.name, fmt::format("{}", link.messages), short_bytes(link.bytes),
                          format_seconds(link.seconds), format_seconds(link.wait_s),
                          known(link.estimate_s, format_seconds(link.estimate_s)),
                          known(link.gb_per_s, fmt::format("{:.3f}", link.gb_per_s)),
                          known(link.bus_gb_per_s, fmt::format("{:.3f}", link.bus_gb_per_s))});
  }
  ReportTable wire{.title = "Bytes on the wire, per step, as the channels counted them",
                   .head = {"", "sent", "received", "messages sent", "saved by packing"},
                   .rows = {}};
  for (const WireUse& use : work.wire) {
    wire.rows.push_back({use.process, short_bytes(use.sent_per_step), short_bytes(use.received_per_step),
                         fmt::format("{:.1f}", use.messages_per_step), short_bytes(use.saved_per_step)});
  }
  std::vector<ReportTable> tables;
  if (!links.rows.empty()) tables.push_back(std::move(links));
  if (!wire.rows.empty()) tables.push_back(std::move(wire));
  return tables;
}

}  // namespace

ReportSection work_section(const WorkloadStudy& work) {
  ReportSection section{.title = fmt::format("Steps: {}", to_string(work.kind))};
  const int steps = work.tracks[work.lead].steps;
  section.figures.push_back(phases_figure(work));
  if (work.efficiency.ridge > 0.0) section.figures.push_back(roofline_figure(work));
  if (!work.timeline.empty()) section.figures.push_back(timeline_figure(work));
  section.tables.push_back(step_table(work));
  int shown = 0;
  for (const TrackTime& track : work.tracks) {
    section.tables.push_back(phase_table(track));
    // Of many stages or ranks terminals show the first; the page has all.
    section.tables.back().long_one = !track.scheduler && shown++ > 0;
  }
  section.tables.push_back(operator_table(work, steps, false));
  if (work.operators.size() > kShownOperations) section.tables.push_back(operator_table(work, steps, true));
  if (work.efficiency.peak_gb_per_s > 0.0) section.tables.push_back(roof_table(work));
  section.tables.push_back(efficiency_table(work));
  if (work.tracks.size() > 1) section.tables.push_back(track_table(work));
  if (!work.waits.empty()) section.tables.push_back(wait_table(work));
  for (ReportTable& table : link_tables(work)) section.tables.push_back(std::move(table));
  section.tables.push_back(flops_table(work, steps));
  if (!work.layers.empty()) section.tables.push_back(layer_table(work));
  return section;
}

}  // namespace butterfly::study
