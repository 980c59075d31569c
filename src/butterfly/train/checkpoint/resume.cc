#include "butterfly/train/checkpoint/resume.h"

#include "butterfly/train/config/run_keys.h"

namespace butterfly {

Result<SavedRun> open_resumed(RunConfig& config) {
  BF_ASSIGN_OR_RETURN(SavedRun saved, open_run(config.resume));
  BF_ASSIGN_OR_RETURN(const RunConfig before, read_run_config(saved.config_path()));
  if (config.seq == 0) config.seq = before.seq;
  if (config.micro_batch == 0) config.micro_batch = before.micro_batch;
  return saved;
}

Status check_same_run(const SavedRun& saved, const RunConfig& config, const DataIdentity& data,
                      const ParameterSet& parameters) {
  const RunState& state = saved.state;
  if (state.fingerprint != fingerprint(config)) {
    BF_ASSIGN_OR_RETURN(const RunConfig before, read_run_config(saved.config_path()));
    for (const RunKey& key : run_keys()) {
      if (key.role != KeyRole::kDecides || key.get(before) == key.get(config)) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: was saved with {} = {}, the run that resumes has {}: it would be "
                        "another run",
                        saved.path, key.name, to_toml(key.get(before)), to_toml(key.get(config)));
    }
    return make_error(ErrorCode::kInvalidArgument, "{}: was saved by a model of another shape than {}", saved.path,
                      config.model);
  }
  const DatasetStats& stats = data.stats;
  if (state.train_tokens != stats.train_tokens || state.unigram_entropy != stats.unigram_entropy) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: was trained on {} tokens (entropy {:.6f}), the data now has {} (entropy {:.6f})", saved.path,
                      state.train_tokens, state.unigram_entropy, stats.train_tokens, stats.unigram_entropy);
  }
  if (!state.data_digest.empty() && !data.digest.empty() && state.data_digest != data.digest) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: was trained on other tokens, of SHA-256 {:.12}..., than data.files has now, of {:.12}...",
                      saved.path, state.data_digest, data.digest);
  }
  const std::vector<Parameter>& now = parameters.list();
  bool same = now.size() == state.parameters.size();
  for (std::size_t i = 0; same && i < now.size(); ++i) {
    const Parameter& before = state.parameters[i];
    same = before.name == now[i].name && before.rows == now[i].rows && before.cols == now[i].cols &&
           before.offset == now[i].offset;
  }
  if (same) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: holds {} parameters in another arrangement than the model's {}",
                    saved.path, state.parameters.size(), now.size());
}

Status check_directory(const std::string& directory, std::int64_t step) {
  if (directory.empty()) return {};
  const std::vector<std::int64_t> steps = saved_steps(directory);
  if (steps.empty() || steps.back() <= step) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "{}: is of another run than this one, which begins at step {}: resume from it, remove it, or choose "
      "another checkpoint.directory",
      checkpoint_path(directory, steps.back()), step);
}

}  // namespace butterfly
