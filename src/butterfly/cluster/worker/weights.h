// Weights on their way from the coordinator to a worker: the rows and columns that it computes with, as named bytes
// with a shape and a digest. What the numbers in `type` mean is the business of the layer above.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/base/hash/digest.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

struct NamedBytes {
  std::uint32_t type = 0;
  std::int64_t rows = 0;  // of what these bytes are, which touch
  std::int64_t cols = 0;
  ByteSpan bytes{};
  std::shared_ptr<const void> owner{};  // keeps bytes alive; may be null where they outlive the session
  std::optional<Sha256> digest{};       // of bytes; computed before they are sent where the provider does not know it
};

/// Gives a part of a weight by name. Called from several threads at once, with parts that a peer asked for and nobody
/// has checked. Errors reach the worker that asked.
using WeightProvider = std::function<Result<NamedBytes>(const std::string& name, const WeightPart& part)>;

struct WeightRequest {
  std::string name{};
  WeightPart part{};
  std::uint64_t bytes_max = 0;  // a larger answer is refused before it is allocated
};

/// Takes one weight; an error ends the fetch.
using WeightSink = std::function<Status(const std::string& name, NamedBytes weight)>;

/// A worker's way to the model. Used by one thread.
class WeightFetcher {
 public:
  virtual ~WeightFetcher() = default;

  /// The file or directory on this machine whose content is the assigned model; nothing when there is none.
  /// May read and hash whole files. Errors: kIo.
  virtual Result<std::optional<std::string>> local_path() = 0;

  /// After what local_path() named was opened: whether that is what was hashed. Errors: kBadData.
  virtual Status check_local(const std::string& /*path*/) const { return {}; }

  /// Hands each wanted weight to `sink`, in order; several requests are under way at once. Between threads of one
  /// process the bytes are the provider's own; from another process they were checked against their SHA-256.
  /// Errors: the provider's; the sink's; kBadData (digest, naming both); kProtocol; kUnavailable; kTimeout.
  virtual Status fetch(std::span<const WeightRequest> wanted, const WeightSink& sink) = 0;
};

}  // namespace butterfly
