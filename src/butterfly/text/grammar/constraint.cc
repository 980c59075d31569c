#include "butterfly/text/grammar/constraint.h"

#include <algorithm>

#include "butterfly/text/grammar/gbnf.h"
#include "butterfly/text/grammar/json_schema.h"
#include "butterfly/text/grammar/regex.h"

namespace butterfly {

Result<std::shared_ptr<const Grammar>> compile(const Constraint& constraint) {
  switch (constraint.kind) {
    case Constraint::Kind::kJsonObject:
      return compile_json_object();
    case Constraint::Kind::kJsonSchema:
      return compile_json_schema_text(constraint.source);
    case Constraint::Kind::kRegex:
      return compile_regex(constraint.source);
    case Constraint::Kind::kGbnf:
      return compile_gbnf(constraint.source);
    case Constraint::Kind::kNone:
      break;
  }
  return make_error(ErrorCode::kInvalidArgument, "there is no grammar to compile");
}

Result<std::shared_ptr<TokenAutomaton>> ConstraintCache::find(const Constraint& constraint) {
  if (constraint.none()) return std::shared_ptr<TokenAutomaton>();
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(recent_, constraint, [](const auto& entry) { return entry.first; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    return recent_.front().second;
  }
  BF_ASSIGN_OR_RETURN(auto grammar, compile(constraint));
  recent_.emplace_front(constraint, std::make_shared<TokenAutomaton>(std::move(grammar), trie_));
  if (recent_.size() > size_max_) recent_.pop_back();
  return recent_.front().second;
}

}  // namespace butterfly
