#include "butterfly/mpi/mpi_world.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <list>
#include <thread>

#include "butterfly/base/check.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/timed_span.h"
#include "butterfly/wire/channel/spin.h"
#include "butterfly/wire/collective/collective_work.h"
#include "butterfly/wire/collective/outcome.h"

namespace butterfly {
namespace {

using Clock = std::chrono::steady_clock;

// MPI has no wait with a deadline: who waits looks again, at first as often as it can, and then now and then.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kYield{300};
constexpr std::chrono::microseconds kNap{50};
// Counts of MPI are ints; what is longer travels in several messages.
constexpr std::size_t kMessageBytesMax = std::size_t{1} << 30;
// Tags may have at least this number of values; messages of the same two members arrive in order.
constexpr std::uint64_t kTags = 32768;
// Up to here all values go to everyone, who adds them up: one exchange instead of two.
constexpr std::uint64_t kDirectBytesMax = 32 * 1024;
// For receives to be given up before their memory is, and for member 0 to say what went wrong.
constexpr std::chrono::milliseconds kGiveUp{200};
constexpr std::chrono::milliseconds kLastWord{10'000};

std::string describe_mpi(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

Status check_mpi(int error) {
  if (error == MPI_SUCCESS) return {};
  return make_error(ErrorCode::kUnavailable, "MPI refuses an operation: {}", describe_mpi(error));
}

MPI_Comm duplicate_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  return copy;
}

/// Whether the members of this machine have a core each; then looking again takes none from another.
enum class Cores : std::uint8_t { kEnough, kShared };

class MpiCollectives final : public Collectives {
 public:
  MpiCollectives(std::chrono::milliseconds timeout, Cores cores)
      : data_(duplicate_world()),
        direct_(duplicate_world()),
        word_(duplicate_world()),
        timeout_(timeout),
        cores_(cores) {
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                    AllReduceAlgorithm algorithm) override;
  std::uint64_t all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const override;
  Status all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) override;
  Status all_gather(std::span<const MutableByteSpan> parts) override;
  Status broadcast(MutableByteSpan data, int root) override;
  Status barrier() override;
  Status send(int to, std::uint64_t label, ByteSpan data) override;
  Status receive(int from, std::uint64_t label, MutableByteSpan data) override;
  CollectiveStats stats() const override {
    return {.operations = operations_.load(), .bytes_sent = bytes_sent_.load(), .wait_ns = wait_ns_.load()};
  }
  void abort() override;

  /// Whether no member has given up, as far as can be told: nothing is under way that MPI could wait for at its end.
  bool intact() { return still_wanted(Clock::time_point::max()).has_value(); }
  void free() {
    forget_sent();
    MPI_Comm_free(&data_);
    MPI_Comm_free(&direct_);
    MPI_Comm_free(&word_);
  }

 private:
  /// A message that is under way, and what it has to be.
  struct Due {
    int member = -1;
    std::size_t bytes = 0;
  };

  template <typename Work>
  Status operation(trace::Zone zone, std::uint64_t bytes, std::uint64_t element_bytes, const Work& work);
  Status reduce_direct(MutableByteSpan data, const ReduceFunction& reduce);
  Status reduce_slices(MutableByteSpan data, std::size_t element_bytes, const ReduceFunction& reduce);
  Status transfer(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from);
  Status post_receive(std::size_t member, MutableByteSpan room);
  Status post_send(std::size_t member, ByteSpan bytes);
  Status wait_all();
  Status still_wanted(Clock::time_point deadline);
  Status check_arrivals(const std::vector<MPI_Status>& statuses) const;
  void give_up();
  Result<MutableByteSpan> scratch(std::size_t bytes);
  void count_sent(std::uint64_t bytes) { bytes_sent_.fetch_add(bytes); }
  int tag() const { return static_cast<int>(operations_.load() % kTags); }

  /// What send() has given to MPI, until it is on its way: the caller has his own again.
  struct Sent {
    Payload copy{};
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void forget_sent();
  static int tag_of(std::uint64_t label) { return static_cast<int>(label % kTags); }

  MPI_Comm data_, direct_, word_;  // of operations; of messages to one member; of members that give up
  const std::chrono::milliseconds timeout_;
  const Cores cores_;
  int rank_ = 0, size_ = 1;
  std::vector<MPI_Request> requests_;
  std::vector<Due> due_;  // of each request; of no member for what is sent
  Payload scratch_;
  std::list<Sent> sent_;  // the training thread's, as all messages to one member
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> operations_{0}, bytes_sent_{0}, wait_ns_{0};
};

template <typename Work>
Status MpiCollectives::operation(trace::Zone zone, std::uint64_t bytes, std::uint64_t element_bytes, const Work& work) {
  trace::TimedSpan span(zone);
  const std::uint64_t sent_before = bytes_sent_.load();
  operations_.fetch_add(1);
  Status status;
  if (size_ > 1) status = aborted_.load() ? still_wanted(Clock::time_point::max()) : work();
  if (!status) {
    abort();
    give_up();
  }
  span.set_work(collective_work(size_, bytes, element_bytes, bytes_sent_.load() - sent_before));
  wait_ns_.fetch_add(span.end());
  return status;
}

Result<MutableByteSpan> MpiCollectives::scratch(std::size_t bytes) {
  if (scratch_.bytes.size() < bytes) {
    scratch_ = {};
    BF_ASSIGN_OR_RETURN(scratch_, allocate_payload(bytes));
  }
  return scratch_.bytes.first(bytes);
}

Status MpiCollectives::post_receive(std::size_t member, MutableByteSpan room) {
  for (std::size_t at = 0; at < room.size(); at += kMessageBytesMax) {
    const std::size_t bytes = std::min(kMessageBytesMax, room.size() - at);
    due_.push_back({.member = static_cast<int>(member), .bytes = bytes});
    BF_TRY(check_mpi(MPI_Irecv(room.data() + at, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(member), tag(),
                               data_, &requests_.emplace_back(MPI_REQUEST_NULL))));
  }
  return {};
}

Status MpiCollectives::post_send(std::size_t member, ByteSpan bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kMessageBytesMax) {
    const auto count = static_cast<int>(std::min(kMessageBytesMax, bytes.size() - at));
    due_.push_back({});
    BF_TRY(check_mpi(MPI_Isend(bytes.data() + at, count, MPI_BYTE, static_cast<int>(member), tag(), data_,
                               &requests_.emplace_back(MPI_REQUEST_NULL))));
  }
  count_sent(bytes.size());
  return {};
}

Status MpiCollectives::transfer(std::span<const ByteSpan> to, std::span<const MutableByteSpan> from) {
  const auto count = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  for (std::size_t i = 1; i < count; ++i) {
    const std::size_t member = (me + count - i) % count;
    BF_TRY(post_receive(member, from[member]));
  }
  for (std::size_t i = 1; i < count; ++i) {
    const std::size_t member = (me + i) % count;
    BF_TRY(post_send(member, to[member]));
  }
  return wait_all();
}

Status MpiCollectives::wait_all() {
  if (requests_.empty()) return {};
  const trace::Scope scope(trace::Zone::kWaitMembers);
  const auto begin = Clock::now();
  const auto deadline = begin + timeout_;
  const auto spin_until = cores_ == Cores::kEnough ? spin_end(kSpin, deadline) : begin;
  std::vector<MPI_Status> statuses(requests_.size());
  for (;;) {
    int done = 0;
    const int error = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data());
    if (error == MPI_ERR_IN_STATUS) return check_arrivals(statuses);
    BF_TRY(check_mpi(error));
    if (done != 0) break;
    const auto now = Clock::now();
    if (now < spin_until) {
      relax_cpu();
    } else if (now < begin + kYield) {
      std::this_thread::yield();
    } else {
      BF_TRY(still_wanted(deadline));
      std::this_thread::sleep_for(kNap);
    }
  }
  const Status status = check_arrivals(statuses);
  requests_.clear();
  due_.clear();
  return status;
}

Status MpiCollectives::check_arrivals(const std::vector<MPI_Status>& statuses) const {
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    if (due_[i].member < 0) continue;
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    const bool longer = statuses[i].MPI_ERROR == MPI_ERR_TRUNCATE;
    if (longer || (statuses[i].MPI_ERROR == MPI_SUCCESS && static_cast<std::size_t>(bytes) != due_[i].bytes)) {
      return make_error(ErrorCode::kProtocol, "member {} sent {} bytes in operation {} where {} were due",
                        due_[i].member, longer ? "more" : fmt::format("{}", bytes), operations_.load(), due_[i].bytes);
    }
    if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING) {
      return make_error(ErrorCode::kUnavailable, "member {} went away: {}", due_[i].member,
                        describe_mpi(statuses[i].MPI_ERROR));
    }
  }
  return {};
}

Status MpiCollectives::still_wanted(Clock::time_point deadline) {
  int given_up = 0;
  MPI_Status who{};
  BF_TRY(check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, word_, &given_up, &who)));
  if (given_up != 0) {
    return make_error(ErrorCode::kUnavailable, "member {} has given up before operation {} was done", who.MPI_SOURCE,
                      operations_.load());
  }
  if (aborted_.load()) {
    return make_error(ErrorCode::kUnavailable, "these collectives were aborted before operation {} was done",
                      operations_.load());
  }
  if (Clock::now() < deadline) return {};
  return make_error(ErrorCode::kTimeout, "operation {} was not done within {} ms: a member did not come",
                    operations_.load(), timeout_.count());
}

void MpiCollectives::abort() {
  if (aborted_.exchange(true)) return;
  for (int member = 0; member < size_; ++member) {
    if (member == rank_) continue;
    MPI_Request sent = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, member, 0, word_, &sent) == MPI_SUCCESS) MPI_Request_free(&sent);
  }
}

/// The caller is about to free what it wanted to have received.
void MpiCollectives::give_up() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (due_[i].member >= 0 && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }
  for (const auto end = Clock::now() + kGiveUp; Clock::now() < end;) {
    int done = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) break;
    std::this_thread::sleep_for(kNap);
  }
  requests_.clear();
  due_.clear();
}

Status MpiCollectives::all_reduce(MutableByteSpan data, int element_bytes, const ReduceFunction& reduce,
                                  AllReduceAlgorithm algorithm) {
  const auto element = static_cast<std::size_t>(element_bytes);
  BF_CHECK(element_bytes > 0 && data.size() % element == 0, "whole elements");
  if (algorithm == AllReduceAlgorithm::kAuto && data.size() <= kDirectBytesMax) algorithm = AllReduceAlgorithm::kDirect;
  return operation(trace::Zone::kAllReduce, data.size(), element, [&] {
    return algorithm == AllReduceAlgorithm::kDirect ? reduce_direct(data, reduce)
                                                    : reduce_slices(data, element, reduce);
  });
}

std::uint64_t MpiCollectives::all_reduce_bytes(std::uint64_t bytes, AllReduceAlgorithm algorithm) const {
  const auto members = static_cast<std::uint64_t>(size_);
  const bool direct =
      algorithm == AllReduceAlgorithm::kDirect || (algorithm == AllReduceAlgorithm::kAuto && bytes <= kDirectBytesMax);
  return direct ? (members - 1) * bytes : 2 * (members - 1) * bytes / members;
}

Status MpiCollectives::reduce_direct(MutableByteSpan data, const ReduceFunction& reduce) {
  const auto members = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  BF_ASSIGN_OR_RETURN(const MutableByteSpan room, scratch(members * data.size()));
  std::vector<MutableByteSpan> values;
  for (std::size_t i = 0; i < members; ++i) {
    values.push_back(i == me ? data : room.subspan(i * data.size(), data.size()));
  }
  BF_TRY(transfer(std::vector<ByteSpan>(members, data), values));
  for (std::size_t i = 1; i < members; ++i) reduce(values[0], values[i]);
  if (me != 0 && !data.empty()) std::memcpy(data.data(), values[0].data(), data.size());
  return {};
}

/// Each member adds up a slice of all, in the order of ranks, and gives the sums to the others.
Status MpiCollectives::reduce_slices(MutableByteSpan data, std::size_t element_bytes, const ReduceFunction& reduce) {
  const auto members = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  const std::size_t elements = data.size() / element_bytes;
  const auto border = [&](std::size_t i) {
    return (elements / members * i + std::min(i, elements % members)) * element_bytes;
  };
  std::vector<ByteSpan> to;
  std::vector<MutableByteSpan> slices;
  for (std::size_t i = 0; i < members; ++i) {
    to.emplace_back(slices.emplace_back(data.subspan(border(i), border(i + 1) - border(i))));
  }
  const MutableByteSpan mine = slices[me];
  BF_ASSIGN_OR_RETURN(const MutableByteSpan room, scratch(members * mine.size()));
  std::vector<MutableByteSpan> values;
  for (std::size_t i = 0; i < members; ++i) {
    values.push_back(i == me ? mine : room.subspan(i * mine.size(), mine.size()));
  }
  BF_TRY(transfer(to, values));
  for (std::size_t i = 1; i < members; ++i) reduce(values[0], values[i]);
  if (me != 0 && !mine.empty()) std::memcpy(mine.data(), values[0].data(), mine.size());
  return transfer(std::vector<ByteSpan>(members, mine), slices);
}

Status MpiCollectives::all_to_all(std::span<const ByteSpan> parts, std::span<const MutableByteSpan> mine) {
  const auto members = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  BF_CHECK(parts.size() == members && mine.size() == members, "one part for each member");
  if (!mine[me].empty() && mine[me].data() != parts[me].data()) {
    BF_CHECK(mine[me].size() == parts[me].size(), "one's own part has one size");
    std::memcpy(mine[me].data(), parts[me].data(), mine[me].size());
  }
  std::uint64_t bytes = 0;
  for (const ByteSpan part : parts) bytes += part.size();
  return operation(trace::Zone::kAllToAll, bytes, 1, [&] { return transfer(parts, mine); });
}

Status MpiCollectives::all_gather(std::span<const MutableByteSpan> parts) {
  BF_CHECK(parts.size() == static_cast<std::size_t>(size_), "one part for each member");
  std::uint64_t bytes = 0;
  for (const MutableByteSpan part : parts) bytes += part.size();
  const std::vector<ByteSpan> own(parts.size(), parts[static_cast<std::size_t>(rank_)]);
  return operation(trace::Zone::kAllGather, bytes, 1, [&] { return transfer(own, parts); });
}

Status MpiCollectives::broadcast(MutableByteSpan data, int root) {
  BF_CHECK(root >= 0 && root < size_, "the root is a member");
  return operation(trace::Zone::kBroadcast, data.size(), 1, [&]() -> Status {
    for (std::size_t at = 0; at < data.size(); at += kMessageBytesMax) {
      const auto count = static_cast<int>(std::min(kMessageBytesMax, data.size() - at));
      due_.push_back({});
      BF_TRY(check_mpi(
          MPI_Ibcast(data.data() + at, count, MPI_BYTE, root, data_, &requests_.emplace_back(MPI_REQUEST_NULL))));
    }
    if (rank_ == root) count_sent(data.size() * static_cast<std::uint64_t>(size_ - 1));
    return wait_all();
  });
}

Status MpiCollectives::barrier() {
  return operation(trace::Zone::kWaitMembers, 0, 1, [&]() -> Status {
    due_.push_back({});
    BF_TRY(check_mpi(MPI_Ibarrier(data_, &requests_.emplace_back(MPI_REQUEST_NULL))));
    return wait_all();
  });
}

void MpiCollectives::forget_sent() {
  std::erase_if(sent_, [](Sent& one) {
    int done = 0;
    return MPI_Test(&one.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  });
}

/// Labels that are under way are few, and messages with one tag arrive in their order.
Status MpiCollectives::send(int to, std::uint64_t label, ByteSpan data) {
  forget_sent();
  for (std::size_t at = 0; at == 0 || at < data.size(); at += kMessageBytesMax) {
    const ByteSpan piece = data.subspan(at, std::min(kMessageBytesMax, data.size() - at));
    Sent& one = sent_.emplace_back();
    BF_ASSIGN_OR_RETURN(one.copy, allocate_payload(piece.size()));
    if (!piece.empty()) std::memcpy(one.copy.bytes.data(), piece.data(), piece.size());
    BF_TRY(check_mpi(MPI_Isend(one.copy.bytes.data(), static_cast<int>(piece.size()), MPI_BYTE, to, tag_of(label),
                               direct_, &one.request)));
  }
  count_sent(data.size());
  return {};
}

Status MpiCollectives::receive(int from, std::uint64_t label, MutableByteSpan data) {
  const auto deadline = Clock::now() + timeout_;
  for (std::size_t at = 0; at == 0 || at < data.size(); at += kMessageBytesMax) {
    const MutableByteSpan piece = data.subspan(at, std::min(kMessageBytesMax, data.size() - at));
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    for (int found = 0; found == 0;) {
      BF_TRY(check_mpi(MPI_Improbe(from, tag_of(label), direct_, &found, &message, &status)));
      if (found != 0) break;
      BF_TRY(still_wanted(deadline));
      forget_sent();
      std::this_thread::sleep_for(kNap);
    }
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != piece.size()) {
      return make_error(ErrorCode::kProtocol, "member {} sent {} bytes with label {} where {} were due", from, bytes,
                        label, piece.size());
    }
    BF_TRY(check_mpi(MPI_Mrecv(piece.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE)));
  }
  return {};
}

class World final : public MpiWorld {
 public:
  explicit World(const MpiOptions& options) {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here_);
    MPI_Comm_size(here_, &members_here_);
    int place_here = 0;
    MPI_Comm_rank(here_, &place_here);
    const int first = place_here == 0 ? 1 : 0;
    MPI_Allreduce(&first, &hosts_, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const Cores cores = share_cores();
    collectives_ = std::make_unique<MpiCollectives>(options.member_timeout, cores);
    farewell_ = std::make_unique<MpiCollectives>(options.member_timeout, Cores::kShared);
  }

  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  int hosts() const override { return hosts_; }
  int members_here() const override { return members_here_; }
  int threads() const override { return threads_; }
  Collectives& collectives() override { return *collectives_; }
  Status settle(const Status& mine) override;
  bool speaks() const override { return rank() == 0 || !settled_; }
  void end(int exit_code) override;

 private:
  Cores share_cores();

  MPI_Comm here_ = MPI_COMM_NULL;
  int hosts_ = 1, members_here_ = 1, threads_ = 1;
  bool settled_ = false;
  std::unique_ptr<MpiCollectives> collectives_, farewell_;
};

Cores World::share_cores() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof(mine), &mine) != 0) CPU_SET(0, &mine);
  cpu_set_t all;
  MPI_Allreduce(&mine, &all, static_cast<int>(sizeof(mine)), MPI_BYTE, MPI_BOR, here_);
  const int cores = CPU_COUNT(&mine);
  int wanted = 0;
  MPI_Allreduce(&cores, &wanted, 1, MPI_INT, MPI_SUM, here_);
  const int there_are = CPU_COUNT(&all);
  threads_ = std::max(1, usable_threads() * there_are / wanted);
  return there_are >= members_here_ ? Cores::kEnough : Cores::kShared;
}

Status World::settle(const Status& mine) {
  const Status agreed = agree_on_outcome(*farewell_, mine);
  settled_ = farewell_->intact();
  // Who could not ask the others has its own reason at least.
  return settled_ || mine ? agreed : mine;
}

void World::end(int exit_code) {
  if (collectives_->intact() && farewell_->intact()) {
    collectives_->free();
    farewell_->free();
    MPI_Comm_free(&here_);
    MPI_Finalize();
    return;
  }
  if (rank() != 0) std::this_thread::sleep_for(kLastWord);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace

Result<std::unique_ptr<MpiWorld>> MpiWorld::open(const MpiOptions& options) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    return make_error(ErrorCode::kUnsupported,
                      "this MPI lets not every thread call it (level {} of {}), which training needs", provided,
                      MPI_THREAD_MULTIPLE);
  }
  return std::make_unique<World>(options);
}

}  // namespace butterfly
