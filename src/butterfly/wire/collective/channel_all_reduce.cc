// The three ways to an all-reduce over channels, and which of them is taken.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/wire/collective/channel_collectives.h"
#include "butterfly/wire/collective/ring.h"

namespace butterfly {
namespace {

constexpr std::array<std::string_view, 4> kNames{"auto", "direct", "ring", "halving"};

// Borders of choose_all_reduce(). Up to this number of members, one message to each is not dearer than the rounds of
// halving.
constexpr int kDirectMembersMax = 4;
constexpr std::uint64_t kDirectBytesMax = 32 * 1024;
// Beyond it the bytes cost more than the 2 (n-1) steps of a ring, which overlaps sending, receiving and adding.
constexpr std::uint64_t kHalvingBytesMax = 256 * 1024;

// A range of so few bytes is not halved any more but exchanged whole: fewer rounds, and a message costs as much.
constexpr std::uint64_t kWholeBytesMax = 4096;

}  // namespace

std::string_view to_string(AllReduceAlgorithm algorithm) {
  return kNames[static_cast<std::size_t>(algorithm)];
}

AllReduceAlgorithm choose_all_reduce(int members, std::uint64_t bytes) {
  if (members <= kDirectMembersMax && bytes <= kDirectBytesMax) return AllReduceAlgorithm::kDirect;
  return bytes <= kHalvingBytesMax ? AllReduceAlgorithm::kRecursiveHalving : AllReduceAlgorithm::kRing;
}

Status ChannelCollectives::all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                                      AllReduceAlgorithm algorithm) {
  BF_CHECK(element_bytes > 0 && data.size() % static_cast<std::size_t>(element_bytes) == 0, "whole elements");
  const Elements elements{.data = data, .element_bytes = static_cast<std::uint64_t>(element_bytes), .reduce = reduce};
  if (algorithm == AllReduceAlgorithm::kAuto) algorithm = choose_all_reduce(size(), data.size());
  const Named named{.zone = trace::Zone::kAllReduce, .bytes = data.size(), .element_bytes = elements.element_bytes};
  return operation(named, [&]() -> Status {
    if (algorithm == AllReduceAlgorithm::kDirect) return reduce_direct(elements);
    if (algorithm == AllReduceAlgorithm::kRecursiveHalving) return reduce_halving(elements);
    BF_ASSIGN_OR_RETURN(const bool done, done_in_memory([&](SharedCollectives& shared) {
                          return shared.all_reduce(data, element_bytes, reduce);
                        }));
    return done ? Status{} : reduce_ring(elements);
  });
}

std::uint64_t ChannelCollectives::all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const {
  const auto members = static_cast<std::uint64_t>(size());
  if (members < 2) return 0;
  if (algorithm == AllReduceAlgorithm::kAuto) algorithm = choose_all_reduce(size(), bytes);
  if (algorithm == AllReduceAlgorithm::kDirect) return (members - 1) * bytes;
  if (algorithm == AllReduceAlgorithm::kRing) return 2 * (members - 1) * bytes / members;
  const std::uint64_t partners = std::bit_floor(members);
  const auto me = static_cast<std::uint64_t>(rank());
  if (me >= partners) return bytes;
  std::uint64_t halvings = 0;
  std::uint64_t whole_rounds = 0;
  for (std::uint64_t distance = partners / 2; distance > 0; distance /= 2) {
    ++(bytes >> halvings > kWholeBytesMax ? halvings : whole_rounds);
  }
  return 2 * (bytes - (bytes >> halvings)) + whole_rounds * (bytes >> halvings) + (me + partners < members ? bytes : 0);
}

Status ChannelCollectives::reduce_direct(const Elements& elements) {
  const MutableByteSpan data = elements.data;
  const auto members = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  BF_ASSIGN_OR_RETURN(const MutableByteSpan room, scratch(members * data.size()));
  std::vector<MutableByteSpan> values(members);  // of each member
  for (std::size_t member = 0; member < members; ++member) {
    values[member] = member == me ? data : room.subspan(member * data.size(), data.size());
    if (member == me) continue;
    to_[member] = data;
    from_[member] = values[member];
  }
  BF_TRY(exchange());
  for (std::size_t member = 1; member < members; ++member) elements.reduce(values[0], values[member]);
  if (me != 0 && !data.empty()) std::memcpy(data.data(), values[0].data(), data.size());
  return {};
}

Status ChannelCollectives::reduce_ring(const Elements& elements) {
  const auto members = static_cast<std::uint64_t>(size());
  std::vector<MutableByteSpan> parts;
  for (std::uint64_t i = 0; i < members; ++i) {
    const std::uint64_t each = elements.count() / members;
    const std::uint64_t longer = elements.count() % members;  // this number of parts has one element more
    const std::uint64_t begin = i * each + std::min(i, longer);
    parts.push_back(elements.part({.begin = begin, .end = begin + each + (i < longer ? 1 : 0)}));
  }
  const std::uint64_t piece_bytes =
      std::max<std::uint64_t>(1, options_.piece_bytes / elements.element_bytes) * elements.element_bytes;
  BF_ASSIGN_OR_RETURN(const MutableByteSpan room, scratch(piece_bytes));
  pieces_.begin(elements.data.size());
  Ring ring(pieces_, parts,
            {.rank = rank(),
             .steps = 2 * (size() - 1),
             .reduce_steps = size() - 1,
             .piece_bytes = piece_bytes,
             .scratch = room,
             .reduce = &elements.reduce});
  BF_TRY(ring.run());
  bytes_sent_.fetch_add(ring.bytes_sent(), std::memory_order_relaxed);
  return {};
}

// The members beyond a power of two first add theirs to a partner's and get the result last. All make the same
// exchanges, empty ones included, since members count them.
Status ChannelCollectives::reduce_halving(const Elements& elements) {
  const auto partners = static_cast<int>(std::bit_floor(static_cast<unsigned>(size())));
  BF_TRY(fold_surplus(elements, partners));
  BF_TRY(exchange_halves(elements, partners));
  return return_surplus(elements, partners);
}

Status ChannelCollectives::fold_surplus(const Elements& elements, int partners) {
  if (partners == size()) return {};
  if (rank() >= partners) return swap(rank() - partners, elements.data, -1, {});
  if (rank() + partners >= size()) return exchange();
  BF_ASSIGN_OR_RETURN(const MutableByteSpan room, scratch(elements.data.size()));
  BF_TRY(swap(-1, {}, rank() + partners, room));
  elements.reduce(elements.data, room);
  return {};
}

Status ChannelCollectives::return_surplus(const Elements& elements, int partners) {
  if (partners == size()) return {};
  if (rank() >= partners) return swap(-1, {}, rank() - partners, elements.data);
  if (rank() + partners >= size()) return exchange();
  return swap(rank() + partners, elements.data, -1, {});
}

Status ChannelCollectives::exchange_halves(const Elements& elements, int partners) {
  const bool takes_part = rank() < partners;
  ElementRange range{.begin = 0, .end = elements.count()};
  std::vector<ElementRange> before;  // what was halved, the whole first
  // Sizes of ranges differ by an element between members, but whether to go on must not.
  std::uint64_t bytes = elements.data.size();
  for (int distance = partners / 2; distance > 0; distance /= 2) {
    const bool halves = bytes > kWholeBytesMax;
    const int partner = rank() ^ distance;
    ElementRange keep = range;
    ElementRange give = range;
    if (halves) {
      const std::uint64_t middle = range.begin + range.size() / 2;
      (rank() < partner ? keep.end : keep.begin) = middle;
      (rank() < partner ? give.begin : give.end) = middle;
      before.push_back(range);
      bytes /= 2;
    }
    if (!takes_part) {
      BF_TRY(exchange());
      continue;
    }
    const MutableByteSpan mine = elements.part(keep);
    BF_ASSIGN_OR_RETURN(const MutableByteSpan room, scratch(mine.size()));
    BF_TRY(swap(partner, elements.part(give), partner, room));
    elements.reduce(mine, room);
    range = keep;
  }
  for (; !before.empty(); before.pop_back()) {
    if (!takes_part) {
      BF_TRY(exchange());
      continue;
    }
    const ElementRange whole = before.back();
    const int partner = rank() ^ (partners >> before.size());
    const bool lower = rank() < partner;
    const ElementRange other{.begin = lower ? range.end : whole.begin, .end = lower ? whole.end : range.begin};
    BF_TRY(swap(partner, elements.part(range), partner, elements.part(other)));
    range = whole;
  }
  return {};
}

}  // namespace butterfly
