// Promise 1 as one matrix: models of every mechanism x weight types x instruction sets x splits over nodes x threads x
// chunks, each compared with one process of `reference` by memcmp.
//
//   answer_matrix            a sample: each value of each dimension, and each mechanism with each weight type
//   answer_matrix --all      every combination
//   answer_matrix --model moe --type q4_k --all      some of them
//   answer_matrix --all --part 2/8     the second of eight parts, which together are every combination
//   answer_matrix --break    compares with other logits: must fail
//
// One line for each case, then how many there were; on stderr how far it is. Exit code 0: all equal; 1: not; 2: a case
// could not run.
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "answer_models.h"
#include "answers.h"
#include "butterfly/machine/isa.h"
#include "butterfly/model/core/random_weights.h"

namespace butterfly {
namespace {

constexpr int kPromptTokens = 9, kDecodeTokens = 3;
const std::vector<int> kThreads{1, 2}, kChunks{1, 4, 512};

struct Options {
  bool all = false;
  bool broken = false;
  std::string model{}, type{};
  int part = 1, parts = 1;  // of the pairs of a model and a type, every parts-th from the part-th
};

/// How layers and slices are divided over nodes.
struct Split {
  std::string name;
  int nodes = 1;                         // of a pipeline, where there is no group
  std::vector<int> slices{}, experts{};  // of a tensor group
  bool of_experts = false;               // only models that have them
};
const std::vector<Split> kSplits{
    {.name = "one process"},
    {.name = "pipeline of 2", .nodes = 2},
    {.name = "pipeline of 3", .nodes = 3},
    {.name = "group 16-16", .slices = {16, 16}},
    {.name = "group 1-9-22", .slices = {1, 9, 22}},
    {.name = "group 7-6-5-8-6", .slices = {7, 6, 5, 8, 6}},
    {.name = "group 24-8, experts 5-27", .slices = {24, 8}, .experts = {5, 27}, .of_experts = true},
    {.name = "group 0-20-12, experts 19-0-13", .slices = {0, 20, 12}, .experts = {19, 0, 13}, .of_experts = true},
};

/// Random weights are made anew whenever they are asked for; here they are kept.
class KeptWeights final : public WeightSource {
 public:
  explicit KeptWeights(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
  std::vector<WeightInfo> list() const override { return source_->list(); }
  bool contains(const std::string& name) const override { return source_->contains(name); }
  std::string description() const override { return source_->description(); }
  Result<WeightView> find(const std::string& name) const override {
    const std::lock_guard lock(mutex_);
    const auto kept = kept_.find(name);
    if (kept != kept_.end()) return kept->second;
    BF_ASSIGN_OR_RETURN(const WeightView view, source_->find(name));
    return kept_.emplace(name, view).first->second;
  }

 private:
  std::shared_ptr<const WeightSource> source_;  // the checkpoint's, which is replaced by this one
  mutable std::mutex mutex_;
  mutable std::map<std::string, WeightView> kept_;
};

Result<Checkpoint> checkpoint_of(const ModelConfig& config, DType type) {
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, random_checkpoint(config, {.seed = 5, .type = type}));
  checkpoint.weights = std::make_shared<KeptWeights>(checkpoint.weights);
  return checkpoint;
}

Result<Answer> answer_of(const Checkpoint& checkpoint, const Split& split, const Case& c) {
  if (split.slices.empty()) return run(checkpoint, c, kPromptTokens, kDecodeTokens);
  const StageAssignment all{.last_layer = checkpoint.config.layers, .embedding = true, .head = true};
  GroupPipeline group(
      checkpoint,
      {.assignment = all, .slices = split.slices, .experts = split.experts, .isas = c.isas, .threads = c.threads});
  return run_on(group, checkpoint, c, kPromptTokens, kDecodeTokens);
}

std::vector<std::vector<Isa>> isa_sets() {
  std::vector<std::vector<Isa>> sets;
  for (const Isa isa : supported_isas()) sets.push_back({isa});
  if (sets.size() > 1) sets.push_back(supported_isas());  // node i runs the i-th, in turn
  return sets;
}

std::string text_of(const std::vector<Isa>& isas) {
  std::string text;
  for (const Isa isa : isas) text += fmt::format("{}{}", text.empty() ? "" : "+", to_string(isa));
  return text;
}

struct Counts {
  int equal = 0, different = 0, failed = 0;
  int cases() const { return equal + different + failed; }
};

/// One mechanism with one weight type.
class Matrix {
 public:
  Matrix(const Options& options, Counts& counts) : options_(options), counts_(counts), isas_(isa_sets()) {}

  void run_all(const Mechanism& mechanism, DType type) {
    const auto checkpoint = checkpoint_of(mechanism.config, type);
    auto expected = checkpoint ? answer_of(*checkpoint, kSplits[0], {.isas = {Isa::kReference}})
                               : Result<Answer>(tl::unexpected(checkpoint.error()));
    if (!expected) {
      std::printf("FAILED %s %s: %s\n", mechanism.name.c_str(), std::string(to_string(type)).c_str(),
                  expected.error().message.c_str());
      ++counts_.failed;
      return;
    }
    if (options_.broken) expected->logits.front() += 1.0f;
    const std::string name = fmt::format("{} {}", mechanism.name, to_string(type));
    for (const Split& split : kSplits) {
      if (split.of_experts && mechanism.config.moe.experts == 0) continue;
      for (const auto& isas : isas_) {
        if (isas.size() > 1 && split.nodes == 1 && split.slices.empty()) continue;  // one node has one of them
        for (const int threads : kThreads) {
          for (const int chunk : kChunks) {
            if (!options_.all && !sampled()) continue;
            const Case c{split.nodes, threads, chunk, static_cast<int>(turn_ % 2) * 2, isas};
            compare(name, split, c, answer_of(*checkpoint, split, c), *expected);
          }
        }
      }
    }
  }

 private:
  /// One case of 37 in turn: 37 divides no number of values, so that all pairs of values come up in time.
  bool sampled() { return turn_++ % 37 == 0; }

  void compare(const std::string& name, const Split& split, const Case& c, const Result<Answer>& answer,
               const Answer& expected) {
    const char* verdict = !answer ? "FAILED" : *answer == expected ? "equal" : "DIFFERENT";
    ++(!answer ? counts_.failed : *answer == expected ? counts_.equal : counts_.different);
    std::printf("%s %s, %s, %s, %d threads, chunks of %d, %d neighbours%s%s\n", verdict, name.c_str(),
                split.name.c_str(), text_of(c.isas).c_str(), c.threads, c.chunk, c.neighbours, answer ? "" : ": ",
                answer ? "" : answer.error().message.c_str());
    if (options_.all) ++turn_;
  }

  const Options& options_;
  Counts& counts_;
  const std::vector<std::vector<Isa>> isas_;
  unsigned turn_ = 0;
};

std::optional<Options> parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--all") {
      options.all = true;
    } else if (word == "--break") {
      options.broken = true;
    } else if ((word == "--model" || word == "--type") && i + 1 < count) {
      (word == "--model" ? options.model : options.type) = words[++i];
    } else if (word == "--part" && i + 1 < count) {
      char rest = 0;
      if (std::sscanf(words[++i], "%d/%d%c", &options.part, &options.parts, &rest) != 2 || options.part < 1 ||
          options.part > options.parts) {
        return std::nullopt;
      }
    } else {
      return std::nullopt;
    }
  }
  return options;
}

/// What one expected answer is computed for.
struct Pair {
  const Mechanism* mechanism;
  DType type;
};

std::vector<Pair> pairs_of(const Options& options, const std::vector<Mechanism>& all) {
  std::vector<Pair> pairs;
  int turn = 0;
  for (const Mechanism& mechanism : all) {
    if (!options.model.empty() && options.model != mechanism.name) continue;
    for (const DType type : kAllDTypes) {
      if (type == DType::kI32 || (!options.type.empty() && options.type != to_string(type))) continue;
      if (turn++ % options.parts == options.part - 1) pairs.push_back({&mechanism, type});
    }
  }
  return pairs;
}

int run_matrix(const Options& options) {
  const std::vector<Mechanism> all = mechanisms();
  const std::vector<Pair> pairs = pairs_of(options, all);
  Counts counts;
  Matrix matrix(options, counts);
  std::set<std::string> models;
  std::set<DType> types;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [mechanism, type] = pairs[i];
    std::fprintf(stderr, "%zu of %zu: %s %s, after %d cases\n", i + 1, pairs.size(), mechanism->name.c_str(),
                 std::string(to_string(type)).c_str(), counts.cases());
    models.insert(mechanism->name);
    types.insert(type);
    matrix.run_all(*mechanism, type);
    std::fflush(stdout);
  }
  const std::string part = options.parts == 1 ? "" : fmt::format("part {}/{}: ", options.part, options.parts);
  std::printf(
      "%s%d cases of %zu models x %zu weight types (%zu pairs) x %zu instruction sets: %d equal to reference by "
      "memcmp, "
      "%d different, %d could not run\n",
      part.c_str(), counts.cases(), models.size(), types.size(), pairs.size(), isa_sets().size(), counts.equal,
      counts.different, counts.failed);
  if (counts.failed > 0 || counts.cases() == 0) return 2;
  return counts.different > 0 ? 1 : 0;
}

}  // namespace
}  // namespace butterfly

int main(int count, char** words) {
  const auto options = butterfly::parse(count, words);
  if (!options) {
    std::fprintf(stderr, "usage: answer_matrix [--all] [--model NAME] [--type TYPE] [--part K/N] [--break]\n");
    return 2;
  }
  return butterfly::run_matrix(*options);
}
