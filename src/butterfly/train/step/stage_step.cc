#include "butterfly/train/step/stage_step.h"

#include "butterfly/trace/timed_span.h"

namespace butterfly {
namespace {

/// Of what is under way between two stages at once, none has the same.
std::uint64_t label_of(int kind, int micro_batch) {
  return static_cast<std::uint64_t>(micro_batch) << 8U | static_cast<std::uint64_t>(kind);
}

class StageStep {
 public:
  StageStep(StepContext& context, std::int64_t step, PhaseClock& clock)
      : context_(context),
        place_(*context.stages),
        passes_(context.transformer.part()),
        links_(passes_, *context.collectives, place_),
        step_(step),
        clock_(clock) {}

  Status run(const StagePass& work) {
    switch (work.kind) {
      case StagePassKind::kEmbed:
        return embed(work.micro_batch);
      case StagePassKind::kForward:
        return forward(work.micro_batch);
      case StagePassKind::kBackward:
        return backward(work.micro_batch);
      case StagePassKind::kEmbedBackward:
        return embed_backward(work.micro_batch);
    }
    return {};
  }

  const StreamLinks& links() const { return links_; }

 private:
  void read(int micro) {
    read_batch(context_, step_, {.first = micro, .count = 1});
    clock_.lap(kData, micro);
  }

  Status embed(int micro) {
    read(micro);
    BF_TRY(passes_.embed(context_.buffers.tokens));
    BF_TRY(links_.send_embedded(micro));
    clock_.lap(kForwardPass, micro);
    return {};
  }

  Status forward(int micro) {
    const int at = micro % place_.kept;
    BF_TRY(links_.receive_forward(micro, at));
    clock_.lap(kCommunication, micro);
    if (place_.is_last()) read(micro);
    BF_ASSIGN_OR_RETURN(const double loss, passes_.forward_part(at, context_.buffers.targets));
    if (place_.is_last()) {
      note_forward(context_, micro, loss);
    } else {
      BF_TRY(links_.send_forward(micro, at));
    }
    clock_.lap(kForwardPass, micro);
    return {};
  }

  Status backward(int micro) {
    const int at = micro % place_.kept;
    if (!place_.is_last()) BF_TRY(links_.receive_backward(micro, at));
    clock_.lap(kCommunication, micro);
    GradientReducer& reducer = context_.reducer;
    const PartPasses::FreshGradients fresh{.layers = reducer.fresh_piece(GradientPiece::kLayers, micro),
                                           .head = reducer.fresh_piece(GradientPiece::kHead, micro)};
    BF_TRY(passes_.backward_part(at, loss_scale(context_), fresh));
    BF_TRY(links_.send_backward(micro, at));
    reducer.piece_done(GradientPiece::kHead, micro);
    reducer.piece_done(GradientPiece::kLayers, micro);
    clock_.lap(kBackwardPass, micro);
    return {};
  }

  Status embed_backward(int micro) {
    BF_TRY(links_.receive_embedding_gradient(micro));
    clock_.lap(kCommunication, micro);
    read(micro);
    GradientReducer& reducer = context_.reducer;
    BF_TRY(passes_.embed_backward(context_.buffers.tokens, reducer.fresh_piece(GradientPiece::kEmbedding, micro)));
    reducer.piece_done(GradientPiece::kEmbedding, micro);
    clock_.lap(kBackwardPass, micro);
    return {};
  }

  StepContext& context_;
  const StagePlace& place_;
  PartPasses& passes_;
  StreamLinks links_;
  const std::int64_t step_;
  PhaseClock& clock_;
};

}  // namespace

Status StreamLinks::send_embedded(int micro_batch) {
  return send(0, Kind::kStream, micro_batch, passes_.stream_out());
}

Status StreamLinks::receive_forward(int micro_batch, int at) {
  RouterTally& tally = passes_.router_tally(at);
  tally.clear();
  const int from = place_.stage == 0 ? place_.stages - 1 : place_.stage - 1;
  BF_TRY(receive(from, Kind::kStream, micro_batch, passes_.stream_in(at)));
  return place_.stage == 0 ? Status{} : receive_tally(from, Kind::kTally, micro_batch, tally);
}

Status StreamLinks::send_forward(int micro_batch, int at) {
  BF_TRY(send(place_.stage + 1, Kind::kStream, micro_batch, passes_.stream_out()));
  return send_tally(place_.stage + 1, Kind::kTally, micro_batch, passes_.router_tally(at));
}

Status StreamLinks::receive_backward(int micro_batch, int at) {
  BF_TRY(receive(place_.stage + 1, Kind::kGradient, micro_batch, passes_.stream_gradient()));
  return receive_tally(place_.stage + 1, Kind::kTallyBack, micro_batch, passes_.router_tally(at));
}

Status StreamLinks::send_backward(int micro_batch, int at) {
  const int to = place_.stage == 0 ? place_.stages - 1 : place_.stage - 1;
  BF_TRY(send(to, Kind::kGradient, micro_batch, passes_.stream_gradient()));
  return place_.stage == 0 ? Status{} : send_tally(to, Kind::kTallyBack, micro_batch, passes_.router_tally(at));
}

Status StreamLinks::receive_embedding_gradient(int micro_batch) {
  return receive(0, Kind::kGradient, micro_batch, passes_.stream_gradient());
}

Status StreamLinks::send(int to, Kind kind, int micro_batch, std::span<const float> rows) {
  formula_bytes_ += rows.size_bytes();
  return collectives_.send(place_.rank_of(to), label_of(static_cast<int>(kind), micro_batch), std::as_bytes(rows));
}

Status StreamLinks::receive(int from, Kind kind, int micro_batch, std::span<float> rows) {
  const trace::TimedSpan waiting(trace::Zone::kWaitGradients);
  const Status received = collectives_.receive(place_.rank_of(from), label_of(static_cast<int>(kind), micro_batch),
                                               std::as_writable_bytes(rows));
  waited_s_ += waiting.end_s();
  return received;
}

/// Without experts there is nothing to count.
Status StreamLinks::send_tally(int to, Kind kind, int micro_batch, const RouterTally& tally) {
  if (tally.tokens.empty()) return {};
  std::vector<double> both(tally.tokens.begin(), tally.tokens.end());
  both.insert(both.end(), tally.probabilities.begin(), tally.probabilities.end());
  formula_bytes_ += both.size() * sizeof(double);
  return collectives_.send(place_.rank_of(to), label_of(static_cast<int>(kind), micro_batch),
                           std::as_bytes(std::span(both)));
}

Status StreamLinks::receive_tally(int from, Kind kind, int micro_batch, RouterTally& tally) {
  if (tally.tokens.empty()) return {};
  std::vector<double> both(tally.tokens.size() + tally.probabilities.size());
  BF_TRY(collectives_.receive(place_.rank_of(from), label_of(static_cast<int>(kind), micro_batch),
                              std::as_writable_bytes(std::span(both))));
  for (std::size_t i = 0; i < tally.tokens.size(); ++i) tally.tokens[i] = static_cast<std::int64_t>(both[i]);
  std::copy(both.begin() + static_cast<std::ptrdiff_t>(tally.tokens.size()), both.end(), tally.probabilities.begin());
  return {};
}

Status pass_stages(StepContext& context, std::int64_t step, StepReport& report, PhaseClock& clock) {
  const std::uint64_t sent_before = context.collectives->stats().bytes_sent;
  StageStep stage(context, step, clock);
  for (const StagePass& work : context.stages->step) BF_TRY(stage.run(work));
  context.buffers.pass_s[static_cast<std::size_t>(context.stages->stage)] =
      report.phases.forward_s + report.phases.backward_s;
  report.reduced.bytes_sent += context.collectives->stats().bytes_sent - sent_before;
  report.reduced.formula_bytes += stage.links().formula_bytes();
  report.reduced.communication_s += stage.links().waited_s();
  report.reduced.exposed_s += stage.links().waited_s();
  return {};
}

}  // namespace butterfly
