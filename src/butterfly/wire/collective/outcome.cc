#include "butterfly/wire/collective/outcome.h"

#include <algorithm>
#include <array>

namespace butterfly {
namespace {

/// A sentence that is longer is cut.
struct Outcome {
  std::int32_t code = -1;  // -1: well
  std::uint32_t bytes = 0;
  std::array<char, 2040> text{};
};

bool is_consequence(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout || code == ErrorCode::kProtocol;
}

}  // namespace

Status agree_on_outcome(Collectives& members, const Status& mine) {
  std::vector<Outcome> all(static_cast<std::size_t>(members.size()));
  if (!mine) {
    Outcome& own = all[static_cast<std::size_t>(members.rank())];
    const std::string& message = mine.error().message;
    own.code = static_cast<std::int32_t>(mine.error().code);
    own.bytes = static_cast<std::uint32_t>(std::min(message.size(), own.text.size()));
    std::copy_n(message.begin(), own.bytes, own.text.begin());
  }
  std::vector<MutableByteSpan> parts;
  for (Outcome& one : all) parts.push_back(std::as_writable_bytes(std::span(&one, 1)));
  BF_TRY(members.all_gather(parts));
  const Outcome* found = nullptr;
  for (const Outcome& one : all) {
    if (one.code < 0) continue;
    if (one.code > static_cast<std::int32_t>(ErrorCode::kCancelled) || one.bytes > one.text.size()) {
      return make_error(ErrorCode::kProtocol, "member {} says that it ended with error {} of {} bytes",
                        &one - all.data(), one.code, one.bytes);
    }
    const auto is_cause = [](const Outcome& any) { return !is_consequence(static_cast<ErrorCode>(any.code)); };
    if (found == nullptr || (is_cause(one) && !is_cause(*found))) found = &one;
  }
  if (found == nullptr) return {};
  const auto rank = found - all.data();
  const std::string_view text(found->text.data(), found->bytes);
  return make_error(static_cast<ErrorCode>(found->code), "{}{}", rank == 0 ? "" : fmt::format("rank {}: ", rank), text);
}

}  // namespace butterfly
