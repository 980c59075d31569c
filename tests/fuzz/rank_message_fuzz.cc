// What ranks of a run say, from a hostile peer: it is refused, or is within the limits and leads to no file of this
// machine.
#include <cstdlib>
#include <span>

#include "butterfly/train/ranks/rank_control.h"
#include "butterfly/train/ranks/ranks.pb.h"
#include "seeds.h"

namespace {

using namespace butterfly;

void require(bool condition) {
  if (!condition) std::abort();
}

RankTask some_task() {
  RankTask task{.number = 2};
  task.config.shape = *named_config("tinytransformer-tiny");
  task.config.data.files = {"tokens-0"};
  task.tokens = {{.name = "tokens-0", .bytes = 100, .sha256 = std::string(64, 'a')}};
  return task;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  ranks::RankMessage task, epoch, lost, wanted;
  store(some_task(), *task.mutable_task());
  epoch.mutable_begin()->add_members()->set_address("127.0.0.1:7000");
  lost.mutable_lost()->set_text("gone");
  wanted.mutable_wanted()->add_places(0);
  fuzz::write_seed(folder, "task", task.SerializeAsString());
  fuzz::write_seed(folder, "epoch", epoch.SerializeAsString());
  fuzz::write_seed(folder, "lost", lost.SerializeAsString());
  fuzz::write_seed(folder, "wanted", wanted.SerializeAsString());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto said = parse_rank_message(std::as_bytes(std::span(data, size)));
  if (!said) return 0;
  require(said->wanted.size() <= kTaskTokensMax && said->members.size() <= kRankNumberMax + 1);
  for (const RankProcess& one : said->members) require(one.number >= 0 && one.number <= kRankNumberMax);
  require(said->kind != RankMessageKind::kHello || said->members.size() == 1);
  require(said->kind != RankMessageKind::kEpoch || !said->members.empty());
  require((said->kind == RankMessageKind::kTask) == said->task.has_value());
  if (!said->task) return 0;
  const RunConfig& config = said->task->config;
  require(validate(config.shape).has_value());
  require(config.model.empty() && config.out.empty() && config.resume.empty() && config.log_file.empty() &&
          config.events_dir.empty() && config.data.tokenizer.empty() && config.parallel.workers.empty());
  return 0;
}
