#include "butterfly/train/rank_mesh.h"

#include <algorithm>

namespace butterfly {
namespace {

constexpr std::int64_t kLookEveryMs = 50;

using Mesh = std::vector<std::shared_ptr<Channel>>;

std::string label(Epoch epoch, int number) {
  return fmt::format("rank {} of epoch {}", number, epoch.value);
}

Status dial_lower(const MeshRequest& request, Mesh& mesh, Deadline deadline) {
  const int number = request.members[static_cast<std::size_t>(request.rank)].number;
  for (std::size_t lower = 0; lower < static_cast<std::size_t>(request.rank); ++lower) {
    BF_TRY(request.still_wanted());
    const RankProcess& member = request.members[lower];
    const ConnectOptions options{.introduction = {.role = ConnectionRole::kData,
                                                  .session = request.session,
                                                  .label = label(request.epoch, number)},
                                 .peer_name = fmt::format("rank {}", member.number)};
    BF_ASSIGN_OR_RETURN(mesh[lower], connect_tcp(member.address, options, deadline));
  }
  return {};
}

/// The place in the mesh of whoever arrived; none for strangers and connections of an epoch that has ended.
std::size_t place_of(const MeshRequest& request, const Mesh& mesh, const Introduction& introduction) {
  if (introduction.role != ConnectionRole::kData || introduction.session != request.session) return mesh.size();
  for (std::size_t place = static_cast<std::size_t>(request.rank) + 1; place < mesh.size(); ++place) {
    if (!mesh[place] && introduction.label == label(request.epoch, request.members[place].number)) return place;
  }
  return mesh.size();
}

Status await_higher(const MeshRequest& request, Mesh& mesh, Deadline deadline) {
  const auto first = mesh.begin() + request.rank + 1;
  for (;;) {
    const auto missing = std::find(first, mesh.end(), nullptr);
    if (missing == mesh.end()) return {};
    BF_TRY(request.still_wanted());
    if (std::chrono::steady_clock::now() >= deadline) {
      const auto place = static_cast<std::size_t>(missing - mesh.begin());
      return make_error(ErrorCode::kTimeout, "rank {} did not connect within {} ms", request.members[place].number,
                        request.timeout.count());
    }
    auto arrival = request.listener->accept(after_ms(kLookEveryMs));
    if (!arrival && arrival.error().code == ErrorCode::kTimeout) continue;
    if (!arrival) return tl::unexpected(arrival.error());
    const std::size_t place = place_of(request, mesh, arrival->introduction);
    if (place < mesh.size()) mesh[place] = std::move(arrival->channel);
  }
}

}  // namespace

Result<Mesh> connect_mesh(const MeshRequest& request) {
  Mesh mesh(request.members.size());
  const Deadline deadline = std::chrono::steady_clock::now() + request.timeout;
  BF_TRY(dial_lower(request, mesh, deadline));
  BF_TRY(await_higher(request, mesh, deadline));
  return mesh;
}

}  // namespace butterfly
