#include "butterfly/train/run/run_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>

#include "butterfly/base/json.h"
#include "butterfly/train/config/run_keys.h"

namespace butterfly {
namespace {

using nlohmann::ordered_json;

/// One line; text that is no UTF-8 is mended instead of thrown at.
std::string one_line(const ordered_json& json) {
  return dump_json(json);
}

ordered_json to_json(const RunConfig& config) {
  ordered_json json;
  for (const RunKey& key : run_keys()) {
    std::visit([&](const auto& value) { json[key.name] = value; }, key.get(config));
  }
  return json;
}

ordered_json to_json(const std::vector<RankRow>& rows) {
  ordered_json list = ordered_json::array();
  for (const RankRow& row : rows) {
    list.push_back({{"rank", list.size()},
                    {"micro_batches", row.micro_batches},
                    {"samples", row.samples},
                    {"compute_s", row.compute_s},
                    {"communication_exposed_s", row.communication_exposed_s},
                    {"network_s", row.network_s},
                    {"network_s_variance", row.network_s_variance},
                    {"compression_s", row.compression_s},
                    {"compression_s_variance", row.compression_s_variance},
                    {"network_kb_per_s", row.network_kb_per_s},
                    {"peak_memory_allocated", row.peak_memory_allocated},
                    {"peak_memory_reserved", row.peak_memory_reserved}});
  }
  return list;
}

ordered_json to_json(const StepReport& report) {
  const StepPhases& phases = report.phases;
  const ReduceReport& reduced = report.reduced;
  ordered_json json{{"event", "step"},
                    {"step", report.step},
                    {"loss", report.loss},
                    {"gradient_norm", report.gradient_norm},
                    {"rate", report.rate},
                    {"left_out", report.left_out},
                    {"tokens", report.tokens},
                    {"step_time", phases.total_s},
                    {"phases",
                     {{"data_s", phases.data_s},
                      {"forward_s", phases.forward_s},
                      {"backward_s", phases.backward_s},
                      {"communication_exposed_s", phases.communication_exposed_s},
                      {"optimizer_s", phases.optimizer_s}}},
                    {"bytes_sent", reduced.bytes_sent},
                    {"uncompressed_bytes", reduced.uncompressed_bytes},
                    {"communication_s", reduced.communication_s},
                    {"codec_s", reduced.codec_s}};
  if (report.experts > 0) {
    const ExpertLoad load = expert_load(report);
    json["router_aux_loss"] = report.router_aux_loss;
    json["expert_load_max"] = load.largest_over_mean;
    json["experts_unused"] = load.unused;
  }
  return json;
}

}  // namespace

std::string to_json(const TrainResult& result) {
  ordered_json json = parse_ordered_json(to_json(result.summary));
  if (!result.ranks.empty()) {
    json["ranks"] = to_json(result.ranks);
    const RankSpread spread = spread_of(result.ranks);
    json["network_kb_per_s_best"] = spread.best_kb_per_s;
    json["network_kb_per_s_worst"] = spread.worst_kb_per_s;
    json["network_kb_per_s_mean"] = spread.mean_kb_per_s;
    json["network_s_std_across_ranks"] = spread.network_s_deviation;
    json["compression_s_std_across_ranks"] = spread.compression_s_deviation;
    json["compute_s_std_across_ranks"] = spread.compute_s_deviation;
    json["straggler"] = spread.straggler < 0 ? ordered_json(nullptr) : ordered_json(spread.straggler);
  }
  json["steps_done"] = result.steps_done;
  json["validation_loss"] = nullptr;
  if (result.validation_loss > 0.0) json["validation_loss"] = result.validation_loss;  // else nothing was evaluated
  json["weights_hash"] = result.weights_hash;
  json["verdict"] = to_string(result.verdict);
  json["valid"] = result.verdict.valid;
  json["reasons"] = result.verdict.reasons;
  json["checks"] = result.verdict.checks;
  return one_line(json);
}

Result<std::unique_ptr<RunLog>> RunLog::open(const RunConfig& config) {
  auto log = std::make_unique<RunLog>();
  if (!config.log_file.empty()) {
    log->path_ = config.log_file;
    log->file_.reset(std::fopen(config.log_file.c_str(), config.resume.empty() ? "wb" : "ab"));
    if (!log->file_) {
      return make_error(ErrorCode::kIo, "{}: cannot be created: {}", config.log_file, std::strerror(errno));
    }
    log->line(one_line({{"event", "run"}, {"fingerprint", fingerprint(config)}, {"config", to_json(config)}}));
  }
  if (!config.events_dir.empty()) {
    BF_ASSIGN_OR_RETURN(log->events_, EventFile::create(config.events_dir));
  }
  BF_TRY(log->status_);
  return log;
}

void RunLog::line(const std::string& json) {
  if (!file_ || !status_) return;
  const std::string text = json + "\n";
  // Whole lines, so that a program that follows the file reads no half of one.
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
  if (!written) status_ = make_error(ErrorCode::kIo, "{}: cannot be written: {}", path_, std::strerror(errno));
}

void RunLog::events(std::int64_t step, const EventFile::Scalars& scalars) {
  if (!events_ || !status_) return;
  status_ = events_->add(step, scalars);
}

void RunLog::step(const StepReport& report) {
  if (file_) line(one_line(to_json(report)));
  const double time_s = report.phases.total_s;
  EventFile::Scalars scalars{{"train/loss", report.loss},
                             {"train/gradient_norm", report.gradient_norm},
                             {"train/learning_rate", report.rate},
                             {"speed/tokens_per_s", time_s > 0 ? static_cast<double>(report.tokens) / time_s : 0.0},
                             {"speed/step_time_s", time_s},
                             {"speed/communication_exposed_s", report.phases.communication_exposed_s}};
  if (report.experts > 0) {
    scalars.push_back({"train/router_aux_loss", report.router_aux_loss});
    scalars.push_back({"train/expert_load_max", expert_load(report).largest_over_mean});
  }
  events(report.step, scalars);
}

void RunLog::evaluated(std::int64_t step, double validation_loss) {
  line(one_line({{"event", "evaluation"}, {"step", step}, {"validation_loss", validation_loss}}));
  events(step, {{"validation/loss", validation_loss}});
}

void RunLog::sampled(std::int64_t step, const std::string& text) {
  line(one_line({{"event", "sample"}, {"step", step}, {"text", text}}));
}

void RunLog::saved(std::int64_t step, const std::string& path) {
  line(one_line({{"event", "checkpoint"}, {"step", step}, {"path", path}}));
}

void RunLog::note(const std::string& message) {
  line(one_line({{"event", "note"}, {"message", message}}));
}

void RunLog::finished(const TrainResult& result) {
  ordered_json json{{"event", "result"}};
  json.update(parse_ordered_json(to_json(result)));
  line(one_line(json));
}

}  // namespace butterfly
