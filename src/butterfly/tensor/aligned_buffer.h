// Exactly sized, 64-byte aligned memory for what lives as long as a model: packed weights. Large buffers ask for huge
// pages (measured: reads reach the memory's ceiling only with them). Movable owner; not initialised, but shared memory
// is zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/machine/shared_memory.h"

namespace butterfly {

enum class PageKind : std::uint8_t { kSmall, kHuge };

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// Errors: kNoMemory naming the size.
  static Result<AlignedBuffer> create(std::uint64_t bytes);
  /// The same for one of many of a model, small ones beside each other in huge pages: on pages of their own they would
  /// be read at half the speed (measured), or fill a huge page each. Memory goes back when all of a run of neighbours
  /// are gone.
  static Result<AlignedBuffer> create_beside_others(std::uint64_t bytes);
  /// The same, zero, and of no memory until it is written to, page by page: for what this process holds a part of. Huge
  /// pages for what comes and goes in large ranges: small ones would cost more than what is written to them.
  static Result<AlignedBuffer> create_sparse(std::uint64_t bytes, PageKind pages);
  /// The same where other processes of this host can map it. Errors: those of SharedMemory::create().
  static Result<AlignedBuffer> create_shared(std::uint64_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        neighbours_(std::move(other.neighbours_)),
        shared_(std::move(other.shared_)),
        sparse_(std::exchange(other.sparse_, false)),
        page_bytes_(other.page_bytes_) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(neighbours_, other.neighbours_);
    std::swap(shared_, other.shared_);
    std::swap(sparse_, other.sparse_);
    std::swap(page_bytes_, other.page_bytes_);
    return *this;
  }
  ~AlignedBuffer();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  /// The descriptor of the memory that others can map; -1 where it is this process's alone.
  int descriptor() const { return shared_.descriptor(); }
  /// Of a sparse one: gives the memory of all whole pages in [begin, end) back; they are zero again.
  void release(std::uint64_t begin, std::uint64_t end);
  bool is_sparse() const { return sparse_; }
  std::uint64_t page_bytes() const { return page_bytes_; }  // of a sparse one

 private:
  AlignedBuffer(std::byte* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  struct Neighbours;
  std::shared_ptr<Neighbours> neighbours_;  // all that lie in one piece of memory own it together; null: alone
  SharedMemory shared_;                     // where it is there, it owns the bytes
  bool sparse_ = false;
  std::uint64_t page_bytes_ = 0;
};

}  // namespace butterfly
