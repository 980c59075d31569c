#include "butterfly/train/gradients/stage_reducer.h"

#include <algorithm>
#include <array>

#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/timed_span.h"
#include "butterfly/train/gradients/gradient_tree.h"
#include "butterfly/train/gradients/sharded_reducer.h"

namespace butterfly {
namespace {

std::span<float> floats_in(const AlignedBuffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), static_cast<std::size_t>(buffer.bytes() / sizeof(float))};
}

class StageReducer final : public GradientReducer {
 public:
  /// `leaves` and `held`: as long as the gradients, of memory where they are written to; none without a tree.
  StageReducer(const ReducerOptions& options, std::vector<AlignedBuffer> leaves, std::vector<AlignedBuffer> held)
      : collectives_(*options.collectives),
        gradients_(options.gradients),
        map_(options.shards->map),
        team_(options.team),
        leaves_(std::move(leaves)),
        held_(std::move(held)) {
    find_pieces();
  }

  void begin_step(const MicroBatches& share) override { total_ = share.total; }
  std::span<float> fresh_gradients(int /*micro_batch*/) override { return {}; }
  void gradients_ready(int /*micro_batch*/, ParameterRange /*range*/) override {}
  void micro_batch_done(int /*micro_batch*/) override {}

  std::span<float> fresh_piece(GradientPiece piece, int micro_batch) override {
    if (leaves_.empty()) return micro_batch == 0 ? gradients_ : std::span<float>();
    return floats_in(leaf(piece, micro_batch));
  }

  void piece_done(GradientPiece piece, int micro_batch) override {
    if (leaves_.empty()) return;
    const LeavesLeft left = micro_batch + 1 == total_ ? LeavesLeft::kNone : LeavesLeft::kSome;
    const std::span<float> values = floats_in(leaf(piece, micro_batch));
    for (const ParameterRange& range : pieces_[static_cast<std::size_t>(piece)]) {
      const trace::Scope scope(trace::Zone::kGradientSum, sum_work(static_cast<std::size_t>(range.size())));
      parallel(range, [&](ParameterRange block) {
        const auto begin = static_cast<std::size_t>(block.begin);
        add_leaves(held_, gradients_, block, {values.subspan(begin, static_cast<std::size_t>(block.size()))},
                   micro_batch, left);
      });
    }
  }

  Result<ReduceReport> finish() override {
    ReduceReport report;
    trace::TimedSpan span(trace::Zone::kReduceBucket);
    const std::uint64_t before = collectives_.stats().bytes_sent;
    for (std::size_t bucket = map_.buckets().size(); bucket > 0; --bucket) {
      BF_TRY(send_to_mirrors(map_, collectives_, bucket - 1, gradients_, report));
    }
    report.bytes_sent = collectives_.stats().bytes_sent - before;
    report.communication_s = report.exposed_s = span.end_s();
    return report;
  }

 private:
  /// Of the head's and the embedding's several may be open.
  const AlignedBuffer& leaf(GradientPiece piece, int micro_batch) const {
    if (piece == GradientPiece::kLayers) return leaves_[0];
    return leaves_[static_cast<std::size_t>(micro_batch) % leaves_.size()];
  }

  void find_pieces() {
    const int me = collectives_.rank();
    const std::int64_t first_layer = map_.buckets()[map_.buckets_of(1).front()].begin;
    for (int unit = 0; unit < map_.units(); ++unit) {
      for (const std::size_t bucket : map_.buckets_of(unit)) {
        const ParameterRange range = map_.part(bucket, me);
        if (range.size() == 0) continue;
        GradientPiece piece = GradientPiece::kLayers;
        if (unit == 0) piece = range.begin < first_layer ? GradientPiece::kEmbedding : GradientPiece::kHead;
        pieces_[static_cast<std::size_t>(piece)].push_back(range);
      }
    }
  }

  template <typename Work>
  void parallel(ParameterRange range, const Work& work) const {
    const auto part = [&](int member, int members) {
      const WorkRange own = split_work(range.size(), member, members);
      in_blocks(own,
                [&](WorkRange block) { work({.begin = range.begin + block.begin, .end = range.begin + block.end}); });
    };
    if (team_ == nullptr) return part(0, 1);
    team_->run([&](int member) { part(member, team_->size()); });
  }

  Collectives& collectives_;
  const std::span<float> gradients_;
  const ShardMap& map_;
  ThreadTeam* const team_;
  const std::vector<AlignedBuffer> leaves_;  // layers' in the first; of micro-batch m the head's in m modulo all
  const std::vector<AlignedBuffer> held_;    // subtrees
  std::array<std::vector<ParameterRange>, kGradientPieces> pieces_;  // of this rank's part
  int total_ = 0;
};

}  // namespace

Result<std::unique_ptr<GradientReducer>> make_stage_reducer(const ReducerOptions& options) {
  std::vector<AlignedBuffer> leaves, held;
  if (options.deterministic) {
    const int total = options.shards->shares.front().total;
    const auto make = [&](std::size_t count, PageKind pages, std::vector<AlignedBuffer>& all) -> Status {
      while (all.size() < count) {
        BF_ASSIGN_OR_RETURN(AlignedBuffer made, AlignedBuffer::create_sparse(options.gradients.size_bytes(), pages));
        all.push_back(std::move(made));
      }
      return {};
    };
    BF_TRY(make(static_cast<std::size_t>(options.shards->open_heads), PageKind::kHuge, leaves));
    BF_TRY(make(held_at_most(0, total - 1), PageKind::kSmall, held));
  }
  return std::make_unique<StageReducer>(options, std::move(leaves), std::move(held));
}

}  // namespace butterfly
