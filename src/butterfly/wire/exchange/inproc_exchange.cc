#include "butterfly/wire/exchange/inproc_exchange.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "butterfly/base/check.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/channel.h"
#include "butterfly/wire/channel/spin.h"

namespace butterfly {
namespace {

/// What one member gives another one: set by the weight_server, then counted in `given`; copied by the taker, then
/// counted in `taken`. The counts are the number of exchanges so far, so nobody can run ahead by more than one.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> given{0};
  ByteSpan bytes;
  alignas(64) std::atomic<std::uint64_t> taken{0};
  std::atomic<bool> copying{false};
};

struct InprocShared {
  InprocShared(int count, const InprocExchangeOptions& chosen)
      : members(count), options(chosen), slots(static_cast<std::size_t>(count) * static_cast<std::size_t>(count)) {}

  Slot& slot(int from, int to) {
    return slots[static_cast<std::size_t>(from) * static_cast<std::size_t>(members) + static_cast<std::size_t>(to)];
  }

  /// After any change that a member may wait for. Sequentially consistent with await(): either the waiter sees the
  /// change or it is seen to sleep.
  void changed() {
    if (sleepers.load() == 0) return;
    const std::lock_guard lock(mutex);
    wake.notify_all();
  }

  /// Until done() or an abort or the deadline.
  template <typename Done>
  void await(const Done& done, Deadline deadline) {
    const auto over = [&] { return done() || aborted.load(); };
    if (over()) return;
    const trace::Scope scope(trace::Zone::kWaitMembers);
    const auto end = spin_end(options.spin, deadline, members);
    while (std::chrono::steady_clock::now() < end) {
      relax_cpu();
      if (over()) return;
    }
    std::unique_lock lock(mutex);
    ++sleepers;
    wake.wait_until(lock, deadline, over);
    --sleepers;
  }

  void abort() {
    aborted.store(true);
    changed();
  }

  const int members;
  const InprocExchangeOptions options;
  std::vector<Slot> slots;  // [from][to]
  std::atomic<bool> aborted{false};
  std::atomic<int> sleepers{0};
  std::mutex mutex;
  std::condition_variable wake;
};

class InprocExchange final : public Exchange {
 public:
  // All ends need the state, and none is the last for certain.
  InprocExchange(std::shared_ptr<InprocShared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  ~InprocExchange() override { shared_->abort(); }

  int rank() const override { return rank_; }
  int size() const override { return shared_->members; }
  void abort() override { shared_->abort(); }

  Status exchange(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) override {
    const auto members = static_cast<std::size_t>(size());
    BF_CHECK(to.size() == members && from.size() == members, "an exchange has an entry for every member");
    const Deadline deadline = after_ms(shared_->options.timeout_ms);
    ++round_;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      Slot& slot = shared_->slot(rank_, r);
      slot.bytes = to[static_cast<std::size_t>(r)];
      slot.given.store(round_);
    }
    shared_->changed();
    for (int r = 0; r < size(); ++r) {
      if (r != rank_) BF_TRY(take(r, from[static_cast<std::size_t>(r)], deadline));
    }
    shared_->changed();
    // Until the last has copied, the buffers are not the caller's again.
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      const Slot& slot = shared_->slot(rank_, r);
      const auto done = [&] { return slot.taken.load() == round_; };
      shared_->await(done, deadline);
      if (!done()) return failure(r);
    }
    return {};
  }

 private:
  Status take(int member, MutableByteSpan into, Deadline deadline) {
    Slot& slot = shared_->slot(member, rank_);
    const auto done = [&] { return slot.given.load() == round_; };
    shared_->await(done, deadline);
    if (!done()) return failure(member);
    // The weight_server keeps its buffer for as long as this says so, and takes it back only after an abort: see
    // give_up().
    slot.copying.store(true);
    if (shared_->aborted.load()) {
      slot.copying.store(false);
      return failure(member);
    }
    const std::size_t size = slot.bytes.size();
    if (size == into.size() && size > 0) std::memcpy(into.data(), slot.bytes.data(), size);
    slot.taken.store(round_);
    slot.copying.store(false);
    if (size == into.size()) return {};
    give_up();
    return make_error(ErrorCode::kProtocol, "member {} of the exchange gave {} bytes, member {} expected {}", member,
                      size, rank_, into.size());
  }

  Status failure(int member) {
    const bool aborted = shared_->aborted.load();
    give_up();
    if (aborted) return make_error(ErrorCode::kUnavailable, "the exchange with member {} was aborted", member);
    return make_error(ErrorCode::kTimeout, "member {} did not come to the exchange within {} ms", member,
                      shared_->options.timeout_ms);
  }

  /// Nobody begins to copy after an abort; who has begun is waited for, since the caller may free what it gave.
  void give_up() {
    shared_->abort();
    for (int r = 0; r < size(); ++r) {
      while (r != rank_ && shared_->slot(rank_, r).copying.load()) relax_cpu();
    }
  }

  std::shared_ptr<InprocShared> shared_;
  const int rank_;
  std::uint64_t round_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Exchange>> make_inproc_exchange(int members, const InprocExchangeOptions& options) {
  BF_CHECK(members >= 1, "an exchange has members");
  const auto shared = std::make_shared<InprocShared>(members, options);
  std::vector<std::unique_ptr<Exchange>> ends;
  for (int rank = 0; rank < members; ++rank) ends.push_back(std::make_unique<InprocExchange>(shared, rank));
  return ends;
}

}  // namespace butterfly
