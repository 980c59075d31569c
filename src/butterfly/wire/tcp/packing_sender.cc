#include "butterfly/wire/tcp/packing_sender.h"

#include <algorithm>
#include <utility>

#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/socket.h"

namespace butterfly {

Packing PackingSender::pack(Payload& payload, int fd) {
  if (break_even_.probe_is_due(payload.bytes.size())) probe(payload.bytes, fd);
  const Packing packing{.codec = break_even_.choose(payload.bytes.size()), .element_bytes = element_bytes_};
  if (packing.codec == Codec::kNone) return {};
  std::optional<Payload> packed = codec_.pack(payload.bytes, packing);
  if (!packed) return {};
  payload = std::move(*packed);
  return packing;
}

void PackingSender::probe(ByteSpan payload, int fd) {
  // From the middle: the first rows of a prompt are often alike.
  const std::size_t bytes = std::min(payload.size(), kSampleBytes);
  const ByteSpan sample = payload.subspan((payload.size() - bytes) / 2 / 4 * 4, bytes);
  std::array<CodecCost, kCodecs.size()> costs{};
  for (std::size_t i = 0; i < kCodecs.size(); ++i) {
    const Packing packing{.codec = kCodecs[i], .element_bytes = element_bytes_};
    const std::uint64_t begin = trace::now_ns();
    const std::optional<Payload> packed = codec_.pack(sample, packing);
    // The peer's time is taken for ours.
    if (packed) static_cast<void>(codec_.unpack(packed->bytes, packing, {}, bytes));
    costs[i].seconds_per_byte = static_cast<double>(trace::now_ns() - begin) * 1e-9 / static_cast<double>(bytes);
    if (packed) costs[i].saved = 1 - static_cast<double>(packed->bytes.size()) / static_cast<double>(bytes);
  }
  break_even_.observe(costs, link_bytes_per_s(fd));
}

double PackingSender::link_bytes_per_s(int fd) {
  const DeliveryRate rate = delivery_rate(fd);
  // A peer that computes does not read: that is no slow link.
  const bool peer_was_slow = std::exchange(receiver_limited_us_, rate.receiver_limited_us) != rate.receiver_limited_us;
  return peer_was_slow ? 0 : rate.bytes_per_s;
}

}  // namespace butterfly
