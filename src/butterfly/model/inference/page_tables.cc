#include "butterfly/model/inference/page_tables.h"

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {

std::int64_t PageTables::pages_for(std::int64_t tokens) {
  return (tokens + kKvPageTokens - 1) / kKvPageTokens;
}

bool PageTables::reserve(SequenceId sequence, std::int64_t tokens) {
  const std::int64_t needed = pages_for(tokens);
  const auto found = tables_.find(sequence);
  const std::int64_t missing = needed - (found == tables_.end() ? 0 : static_cast<std::int64_t>(found->second.size()));
  if (pages_max_ && missing > *pages_max_ - used()) return false;
  std::vector<std::int32_t>& table = tables_[sequence];
  for (std::int64_t i = 0; i < missing; ++i) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::int32_t>(users_.size()));
      users_.push_back(0);
    }
    table.push_back(free_.back());
    users_[static_cast<std::size_t>(free_.back())] = 1;
    free_.pop_back();
  }
  return true;
}

Status PageTables::share(SequenceId from, SequenceId to, std::int64_t tokens) {
  const auto found = tables_.find(from);
  const auto present = found == tables_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
  if (tokens <= 0 || tokens % kKvPageTokens != 0 || tokens / kKvPageTokens > present) {
    return make_error(ErrorCode::kProtocol, "{} positions of a sequence with {} pages of {} cannot be shared", tokens,
                      present, kKvPageTokens);
  }
  if (tables_.contains(to)) {
    return make_error(ErrorCode::kProtocol, "sequence {} has pages already and cannot begin like another", to.value);
  }
  std::vector<std::int32_t> table(found->second.begin(), found->second.begin() + tokens / kKvPageTokens);
  for (const std::int32_t page : table) ++users_[static_cast<std::size_t>(page)];
  tables_.emplace(to, std::move(table));
  return {};
}

void PageTables::release(SequenceId sequence) {
  const auto found = tables_.find(sequence);
  if (found == tables_.end()) return;
  for (const std::int32_t page : found->second) {
    if (--users_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
  }
  tables_.erase(found);
}

}  // namespace butterfly
