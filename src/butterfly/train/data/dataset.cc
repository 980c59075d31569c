#include "butterfly/train/data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "butterfly/train/data/permutation.h"
#include "butterfly/train/data/synthetic.h"
#include "butterfly/train/data/token_source.h"

namespace butterfly {
namespace {

/// Part of a source: [begin, begin + size).
struct Subset {
  const TokenSource* source = nullptr;
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

double entropy(const std::vector<std::uint64_t>& counts) {
  double total = 0.0, sum = 0.0;
  for (std::uint64_t count : counts) total += static_cast<double>(count);
  for (std::uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / total;
    sum -= share * std::log(share);
  }
  return sum;
}

class FileDataset : public Dataset {
 public:
  static Result<std::unique_ptr<Dataset>> open(const DataConfig& config, const DatasetOptions& options);

  DatasetStats stats() const override { return stats_; }
  int vocab() const override { return train_source_.vocab(); }

  Result<std::string> digest() const override { return train_source_.digest(train_.begin, train_.size); }

  Status unchanged() const override {
    BF_TRY(train_source_.unchanged());
    return validation_source_.unchanged();
  }

  void sequence(std::int64_t step, int index, std::span<TokenId> tokens, std::span<TokenId> targets) const override {
    const std::int64_t number = step * global_batch_ + index;
    const auto epoch = static_cast<std::uint64_t>(number / windows_);
    const Permutation shuffle(static_cast<std::uint64_t>(windows_), mixed(seed_, 2 * epoch));
    const auto window = static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(number % windows_)));
    const auto shift = static_cast<std::int64_t>(mixed(seed_, 2 * epoch + 1) % static_cast<std::uint64_t>(shifts_));
    const std::int64_t begin = train_.begin + shift + window * seq_;
    train_.source->copy(begin, tokens);
    train_.source->copy(begin + 1, targets);
  }

  std::vector<TokenPart> parts() const override {
    std::vector<TokenPart> all = train_source_.parts();
    const std::vector<TokenPart> more = validation_source_.parts();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::int64_t validation_windows(int seq) const override {
    return validation_.size < 2 ? 0 : (validation_.size - 2) / seq + 1;
  }

  void validation_window(std::int64_t window, std::span<TokenId> tokens, std::span<TokenId> targets) const override {
    const auto seq = static_cast<std::int64_t>(tokens.size());
    const std::int64_t begin = window * seq;
    const auto here = static_cast<std::size_t>(std::clamp<std::int64_t>(validation_.size - 1 - begin, 0, seq));
    validation_.source->copy(validation_.begin + begin, tokens.first(here));
    validation_.source->copy(validation_.begin + begin + 1, targets.first(here));
    std::ranges::fill(tokens.subspan(here), TokenId(0));
    std::ranges::fill(targets.subspan(here), TokenId(-1));
  }

 private:
  Status divide(const DataConfig& config, const DatasetOptions& options);
  Status measure();

  TokenSource train_source_, validation_source_;
  Subset train_, validation_;
  DatasetStats stats_;
  std::uint64_t seed_ = 1;
  std::int64_t seq_ = 1, global_batch_ = 1;
  std::int64_t windows_ = 1;  // of an epoch
  std::int64_t shifts_ = 1;   // where an epoch's first window may begin
};

Status FileDataset::divide(const DataConfig& config, const DatasetOptions& options) {
  train_ = {.source = &train_source_, .begin = 0, .size = train_source_.size()};
  if (!config.validation_file.empty()) {
    DatasetOptions same = options;
    same.vocab = train_source_.vocab();
    same.progress = {};
    BF_ASSIGN_OR_RETURN(validation_source_, TokenSource::open({config.validation_file}, same));
    validation_ = {.source = &validation_source_, .begin = 0, .size = validation_source_.size()};
  } else {
    const auto kept = static_cast<std::int64_t>(static_cast<double>(train_.size) * config.validation_share);
    train_.size -= kept;
    validation_ = {.source = &train_source_, .begin = train_.size, .size = kept};
  }
  // A window is seq tokens, and one more for the last target. Where there are two or more, one is given up so that
  // epochs can begin anywhere in the first.
  const std::int64_t whole = (train_.size - 1) / seq_;
  windows_ = whole > 1 ? whole - 1 : whole;
  if (train_.size <= seq_ || windows_ < global_batch_) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: {} tokens to train on, a step needs {} ({} sequences of {} tokens): give more text, or lower "
        "global_batch or seq",
        fmt::join(config.files, ", "), train_.size, (global_batch_ + (global_batch_ > 1 ? 1 : 0)) * seq_ + 1,
        global_batch_, seq_);
  }
  shifts_ = std::min(seq_, train_.size - windows_ * seq_);
  return {};
}

Status FileDataset::measure() {
  BF_ASSIGN_OR_RETURN(const auto counts, train_.source->counts(train_.begin, train_.size));
  BF_TRY(validation_.source->counts(validation_.begin, validation_.size));
  stats_ = {.train_tokens = train_.size, .validation_tokens = validation_.size, .unigram_entropy = entropy(counts)};
  return {};
}

Result<std::unique_ptr<Dataset>> FileDataset::open(const DataConfig& config, const DatasetOptions& options) {
  auto dataset = std::make_unique<FileDataset>();
  dataset->seed_ = config.seed;
  dataset->seq_ = options.seq;
  dataset->global_batch_ = options.global_batch;
  BF_ASSIGN_OR_RETURN(dataset->train_source_, TokenSource::open(config.files, options));
  BF_TRY(dataset->divide(config, options));
  BF_TRY(dataset->measure());
  return std::unique_ptr<Dataset>(std::move(dataset));
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_dataset(const DataConfig& config, const DatasetOptions& options) {
  if (config.files.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "data.files names 0 files, at least 1 is needed to train on");
  }
  if (options.seq < 1 || options.global_batch < 1) {
    return make_error(ErrorCode::kInvalidArgument, "seq is {} and global_batch {}, both must be at least 1",
                      options.seq, options.global_batch);
  }
  if (!config.files.front().starts_with("synthetic:")) return FileDataset::open(config, options);
  if (config.files.size() > 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} is a whole corpus, data.files names {} more",
                      config.files.front(), config.files.size() - 1);
  }
  if (!config.validation_file.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} has tokens of its own to validate on, not those of '{}'",
                      config.files.front(), config.validation_file);
  }
  return make_synthetic(config, options);
}

}  // namespace butterfly
