// Control messages from a hostile coordinator: whatever it assigns is refused, or is work that a stage can look at, and
// says the same when it is said again.
#include <cstdlib>
#include <span>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/message_bytes.h"
#include "butterfly/model/core/config_json.h"
#include "seeds.h"

namespace {

using namespace butterfly;

void require(bool condition) {
  if (!condition) std::abort();
}

Assignment some_assignment() {
  Assignment assignment;
  assignment.model = {.hash = std::string(64, 'a'), .bytes = 5, .name = "some"};
  assignment.config = *named_config("butterfly-demo");
  assignment.stage = {.first_layer = 2, .last_layer = 4, .head = true, .slices = {{3, 5}, {8, 16}}};
  assignment.rank = Rank(1);
  assignment.stages = 2;
  assignment.group = {"a:1", "b:2", "c:3"};
  assignment.member = 1;
  return assignment;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  for (const std::string& name : named_configs()) {
    Assignment assignment = some_assignment();
    assignment.config = *named_config(name);
    control::ControlMessage message;
    store(std::span(&assignment, 1), *message.mutable_assign());
    fuzz::write_seed(folder, name, message.SerializeAsString());
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  control::ControlMessage message;
  if (!read_message(std::as_bytes(std::span(data, size)), message) || !message.has_assign()) return 0;
  const auto read = read_assignments(message.assign());
  if (!read) return 0;
  require(!read->empty() && read->size() <= kSharesMax && validate(read->front().config).has_value());
  control::Assign again;
  store(*read, again);
  const auto twice = read_assignments(again);
  require(twice.has_value() && twice->size() == read->size());
  require(to_json(twice->front().config) == to_json(read->front().config));
  require(twice->back().stage == read->back().stage && twice->back().group == read->back().group);
  return 0;
}
