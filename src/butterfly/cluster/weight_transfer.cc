#include "butterfly/cluster/weight_transfer.h"

#include <algorithm>

#include "butterfly/base/units.h"
#include "butterfly/cluster/control_link.h"

namespace butterfly {
namespace {

constexpr std::size_t kAhead = 4;  // requests under way: the coordinator reads the next while one is on its way
constexpr std::int64_t kWeightTimeoutMs = 120'000;  // for one weight, on a slow link or from a slow disk
constexpr std::int64_t kIdleTimeoutMs = 3'600'000;  // between two requests; the session closes the channel long before

std::vector<std::byte> serialise(const control::WeightMessage& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(bytes.data()));
  return bytes;
}

Result<control::WeightMessage> parse(const Message& framed, const std::string& peer) {
  control::WeightMessage message;
  if (!message.ParseFromArray(framed.meta.data(), static_cast<int>(framed.meta.size()))) {
    return make_error(ErrorCode::kProtocol, "{} sent {} bytes that are no message about weights", peer,
                      framed.meta.size());
  }
  return message;
}

}  // namespace

Status RemoteWeightFetcher::ask(const WeightRequest& request, std::uint64_t tag) {
  control::WeightMessage message;
  message.mutable_wanted()->set_name(request.name);
  return channel_.send({.tag = tag, .meta = serialise(message)}, after_ms(kWeightTimeoutMs));
}

Result<NamedBytes> RemoteWeightFetcher::take(const WeightRequest& request, std::uint64_t tag) {
  const PayloadAllocator allocator = [&](std::uint64_t bytes) -> Result<Payload> {
    if (bytes > request.bytes_max) {
      return make_error(ErrorCode::kProtocol, "{} would be {}, at most {} were expected", request.name,
                        format_bytes(bytes), format_bytes(request.bytes_max));
    }
    return allocate_payload(bytes);
  };
  BF_ASSIGN_OR_RETURN(const Message framed, channel_.receive(allocator, after_ms(kWeightTimeoutMs)));
  BF_ASSIGN_OR_RETURN(const auto message, parse(framed, channel_.peer()));
  if (framed.tag != tag) {
    return make_error(ErrorCode::kProtocol, "answer {} came where answer {} was due", framed.tag, tag);
  }
  if (message.has_failure()) return tl::unexpected(read_failure(message.failure(), "the coordinator"));
  const auto& header = message.header();
  Sha256 announced{};
  if (!message.has_header() || header.sha256().size() != announced.size()) {
    return make_error(ErrorCode::kProtocol, "{} came without its digest", request.name);
  }
  std::ranges::copy(as_bytes(header.sha256()), announced.begin());
  const Sha256 actual = sha256(framed.payload.bytes);
  if (actual != announced) {
    return make_error(ErrorCode::kBadData, "{} arrived with SHA-256 {}, the coordinator announced {}", request.name,
                      to_hex(actual), to_hex(announced));
  }
  return NamedBytes{.type = header.type(),
                    .rows = header.rows(),
                    .cols = header.cols(),
                    .bytes = framed.payload.bytes,
                    .owner = framed.payload.owner,
                    .digest = actual};
}

Status RemoteWeightFetcher::fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) {
  const std::uint64_t first = asked_;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    while (asked_ - first < std::min(wanted.size(), i + kAhead)) {
      BF_TRY(ask(wanted[asked_ - first], asked_));
      ++asked_;
    }
    auto weight = take(wanted[i], first + i);
    Status taken = weight ? sink(wanted[i].name, std::move(*weight)) : tl::unexpected(weight.error());
    if (!taken) {
      channel_.close();  // answers that are still under way would be taken for those of the next fetch
      return taken;
    }
  }
  return {};
}

namespace {

Message answer(const control::WeightMessage& asked, const WeightProvider& provider) {
  control::WeightMessage said;
  Message framed;
  Result<NamedBytes> weight = asked.has_wanted()
                                  ? provider(asked.wanted().name())
                                  : make_error(ErrorCode::kProtocol, "a request for weights without a name");
  if (weight) {
    const Sha256 digest = weight->digest ? *weight->digest : sha256(weight->bytes);
    auto* header = said.mutable_header();
    header->set_type(weight->type);
    header->set_rows(weight->rows);
    header->set_cols(weight->cols);
    header->set_sha256(digest.data(), digest.size());
    // A payload can be written by its receiver, so its type is not const; a sender's channel only reads it.
    framed.payload = {.owner = std::const_pointer_cast<void>(weight->owner),
                      .bytes = {const_cast<std::byte*>(weight->bytes.data()), weight->bytes.size()}};
  } else {
    store(weight.error(), *said.mutable_failure());
  }
  framed.meta = serialise(said);
  return framed;
}

}  // namespace

Status serve_weights(Channel& channel, const WeightProvider& provider, std::atomic<std::uint64_t>& bytes_sent) {
  for (;;) {
    BF_ASSIGN_OR_RETURN(const Message framed, channel.receive({}, after_ms(kIdleTimeoutMs)));
    BF_ASSIGN_OR_RETURN(const auto asked, parse(framed, channel.peer()));
    Message answered = answer(asked, provider);
    answered.tag = framed.tag;
    const std::uint64_t bytes = answered.payload.bytes.size();
    BF_TRY(channel.send(std::move(answered), after_ms(kWeightTimeoutMs)));
    bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  }
}

Status DirectWeightFetcher::fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) {
  for (const WeightRequest& request : wanted) {
    BF_ASSIGN_OR_RETURN(NamedBytes weight, provider_(request.name));
    BF_TRY(sink(request.name, std::move(weight)));
  }
  return {};
}

}  // namespace butterfly
