#include "butterfly/cluster/worker/weight_transfer.h"

#include <algorithm>

#include "butterfly/base/log.h"
#include "butterfly/base/units.h"
#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/control/message_bytes.h"

namespace butterfly {
namespace {

constexpr std::size_t kAhead = 4;  // requests under way: the coordinator reads the next while one is on its way
constexpr std::int64_t kWeightTimeoutMs = 120'000;  // for one weight, on a slow link or from a slow disk
constexpr std::int64_t kIdleTimeoutMs = 3'600'000;  // between two requests; the session closes the channel long before

Result<control::WeightMessage> parse(const Message& framed, const std::string& peer) {
  control::WeightMessage message;
  if (!read_message(framed.meta, message)) {
    return make_error(ErrorCode::kProtocol, "{} sent {} bytes that are no message about weights", peer,
                      framed.meta.size());
  }
  return message;
}

}  // namespace

Status RemoteWeightFetcher::ask(Peer& peer, const WeightRequest& request, Wanted what, std::uint64_t tag) {
  control::WeightMessage message;
  control::WeightWanted& wanted = *message.mutable_wanted();
  wanted.set_name(request.name);
  wanted.set_header_only(what == Wanted::kHeaders);
  wanted.set_rows(request.part.rows);
  wanted.set_cols(request.part.cols);
  wanted.set_first_row(request.part.of_rows.begin);
  wanted.set_last_row(request.part.of_rows.end);
  wanted.set_first_col(request.part.of_cols.begin);
  wanted.set_last_col(request.part.of_cols.end);
  BF_ASSIGN_OR_RETURN(auto meta, write_message(message, peer.channel.peer()));
  return peer.channel.send({.tag = tag, .meta = std::move(meta)}, after_ms(kWeightTimeoutMs));
}

Result<NamedBytes> RemoteWeightFetcher::take(Peer& peer, const WeightRequest& request, Wanted what, std::uint64_t tag) {
  const std::uint64_t bytes_max = what == Wanted::kHeaders ? 0 : request.bytes_max;
  const PayloadAllocator allocator = [&](std::uint64_t bytes) -> Result<Payload> {
    if (bytes > bytes_max) {
      return make_error(ErrorCode::kProtocol, "{} would be {}, at most {} were expected", request.name,
                        format_bytes(bytes), format_bytes(bytes_max));
    }
    return allocate_payload(bytes);
  };
  BF_ASSIGN_OR_RETURN(const Message framed, peer.channel.receive(allocator, after_ms(kWeightTimeoutMs)));
  BF_ASSIGN_OR_RETURN(const auto message, parse(framed, peer.channel.peer()));
  if (framed.tag != tag) {
    return make_error(ErrorCode::kProtocol, "answer {} came where answer {} was due", framed.tag, tag);
  }
  if (message.has_failure()) return tl::unexpected(read_failure(message.failure(), peer.who));
  const auto& header = message.header();
  Sha256 announced{};
  if (!message.has_header() || header.sha256().size() != announced.size()) {
    return make_error(ErrorCode::kProtocol, "{} came without its digest", request.name);
  }
  std::ranges::copy(as_bytes(header.sha256()), announced.begin());
  const Sha256 actual = what == Wanted::kHeaders ? announced : sha256(framed.payload.bytes);
  if (actual != announced) {
    return make_error(ErrorCode::kBadData, "{} arrived with SHA-256 {}, {} announced {}", request.name, to_hex(actual),
                      peer.who, to_hex(announced));
  }
  return NamedBytes{.type = header.type(),
                    .rows = header.rows(),
                    .cols = header.cols(),
                    .bytes = framed.payload.bytes,
                    .owner = framed.payload.owner,
                    .digest = actual};
}

/// Several requests are under way at once; answers are taken in order. After an error the channel is closed: answers
/// that are still under way would be taken for those of the next transfer.
Status RemoteWeightFetcher::transfer(Peer& peer, std::span<const WeightRequest> wanted, Wanted what,
                                     const Taker& taker) {
  const std::uint64_t first = peer.asked;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    Status status;
    while (status && peer.asked - first < std::min(wanted.size(), i + kAhead)) {
      status = ask(peer, wanted[peer.asked - first], what, peer.asked);
      ++peer.asked;
    }
    if (status) {
      auto weight = take(peer, wanted[i], what, first + i);
      status = weight ? taker(i, std::move(*weight)) : tl::unexpected(weight.error());
    }
    if (!status) {
      peer.channel.close();
      return status;
    }
  }
  return {};
}

/// Whether there is one, connected.
bool RemoteWeightFetcher::reach_holder() {
  while (!holder_ && model_.connect && next_holder_ < model_.holders.size()) {
    const std::string& address = model_.holders[next_holder_++];
    auto channel = model_.connect(address);
    if (!channel) {
      log().info("no weights from worker {}: {}", address, channel.error().message);
      continue;
    }
    holder_channel_ = std::move(*channel);
    holder_.emplace(Peer{.channel = *holder_channel_, .who = fmt::format("worker {}", address)});
    log().info("weights come from {}", holder_->who);
  }
  return holder_.has_value();
}

/// How many weights came, in order, before nobody was left who could give the next. Errors: the coordinator's, the
/// sink's.
Result<std::size_t> RemoteWeightFetcher::fetch_from_holders(std::span<const WeightRequest> wanted,
                                                            const WeightSink& sink) {
  if (!reach_holder()) return 0;
  std::vector<NamedBytes> announced;
  BF_TRY(transfer(coordinator_, wanted, Wanted::kHeaders, [&](std::size_t, NamedBytes header) -> Status {
    announced.push_back(std::move(header));
    return {};
  }));
  std::size_t taken = 0;
  Status sunk;
  while (taken < wanted.size() && reach_holder()) {
    const auto taker = [&](std::size_t, NamedBytes weight) -> Status {
      const NamedBytes& told = announced[taken];
      if (weight.digest != told.digest) {
        return make_error(ErrorCode::kBadData, "{} has SHA-256 {}, the coordinator announced {}", wanted[taken].name,
                          to_hex(*weight.digest), to_hex(*told.digest));
      }
      weight.type = told.type;
      weight.rows = told.rows;
      weight.cols = told.cols;
      sunk = sink(wanted[taken].name, std::move(weight));
      if (sunk) ++taken;
      return sunk;
    };
    const Status status = transfer(*holder_, wanted.subspan(taken), Wanted::kWhole, taker);
    if (!sunk) return tl::unexpected(sunk.error());
    if (status) break;
    log().warn("{} is not asked for weights any more: {}", holder_->who, status.error().message);
    holder_.reset();
    holder_channel_.reset();
  }
  return taken;
}

Status RemoteWeightFetcher::fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) {
  BF_ASSIGN_OR_RETURN(const std::size_t taken, fetch_from_holders(wanted, sink));
  const auto rest = wanted.subspan(taken);
  return transfer(coordinator_, rest, Wanted::kWhole,
                  [&](std::size_t i, NamedBytes weight) -> Status { return sink(rest[i].name, std::move(weight)); });
}

namespace {

WeightPart part_of(const control::WeightWanted& wanted) {
  return {.rows = wanted.rows(),
          .cols = wanted.cols(),
          .of_rows = {wanted.first_row(), wanted.last_row()},
          .of_cols = {wanted.first_col(), wanted.last_col()}};
}

Result<Message> answer(const control::WeightMessage& asked, const WeightProvider& provider, const std::string& peer) {
  control::WeightMessage said;
  Message framed;
  Result<NamedBytes> weight = asked.has_wanted()
                                  ? provider(asked.wanted().name(), part_of(asked.wanted()))
                                  : make_error(ErrorCode::kProtocol, "a request for weights without a name");
  if (weight) {
    const Sha256 digest = weight->digest ? *weight->digest : sha256(weight->bytes);
    auto* header = said.mutable_header();
    header->set_type(weight->type);
    header->set_rows(weight->rows);
    header->set_cols(weight->cols);
    header->set_sha256(digest.data(), digest.size());
    // A payload can be written by its receiver, so its type is not const; a sender's channel only reads it.
    if (!asked.wanted().header_only())
      framed.payload = {.owner = std::const_pointer_cast<void>(weight->owner),
                        .bytes = {const_cast<std::byte*>(weight->bytes.data()), weight->bytes.size()}};
  } else {
    store(weight.error(), *said.mutable_failure());
  }
  BF_ASSIGN_OR_RETURN(framed.meta, write_message(said, peer));
  return framed;
}

}  // namespace

Status serve_weights(Channel& channel, const WeightProvider& provider, std::atomic<std::uint64_t>& bytes_sent) {
  for (;;) {
    BF_ASSIGN_OR_RETURN(const Message framed, channel.receive(refuse_payload, after_ms(kIdleTimeoutMs)));
    BF_ASSIGN_OR_RETURN(const auto asked, parse(framed, channel.peer()));
    BF_ASSIGN_OR_RETURN(Message answered, answer(asked, provider, channel.peer()));
    answered.tag = framed.tag;
    // Before its receiver can be ready: a thread that sees it ready also sees these bytes.
    bytes_sent.fetch_add(answered.payload.bytes.size());
    BF_TRY(channel.send(std::move(answered), after_ms(kWeightTimeoutMs)));
  }
}

Status DirectWeightFetcher::fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) {
  for (const WeightRequest& request : wanted) {
    BF_ASSIGN_OR_RETURN(NamedBytes weight, provider_(request.name, request.part));
    BF_TRY(sink(request.name, std::move(weight)));
  }
  return {};
}

}  // namespace butterfly
