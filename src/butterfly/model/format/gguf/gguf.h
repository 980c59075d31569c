// The GGUF container (docs/formats/gguf.md): typed metadata and named tensors, versions 2 and 3, little endian.
// Knows nothing about models. Everything is checked while parsing: whatever a GgufFile hands out lies inside the bytes
// it was parsed from, which it borrows. Immutable after parsing, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/base/text/printable.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// Types of metadata values, numbered as in the file.
enum class GgufType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

struct GgufTensor {
  std::string_view name;
  std::uint32_t file_type = 0;                    // the number that the file uses
  std::string type_name;                          // "Q4_1"
  std::optional<DType> type;                      // nothing where this library cannot compute with it
  int dims = 0;                                   // 1 to 4
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};  // shape[0] is the contiguous dimension, as in the file
  ByteSpan bytes;                                 // empty where the size of the type is unknown
};

class GgufFile {
 public:
  /// `source` names the bytes in messages. Errors: kBadData naming both disagreeing values; kUnsupported for
  /// version 1, later versions and big-endian files.
  static Result<GgufFile> parse(ByteSpan bytes, std::string source);

  std::uint32_t version() const { return version_; }
  const std::string& source() const { return source_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;

  /// Adds the tensors of another file of the same model; the bytes of both have to stay. Errors: kBadData for a name
  /// that both have.
  Status add_tensors(const GgufFile& other);

  /// Tensors of Q8_0 are int8 ones, whose rows have one scale each (docs/formats/gguf.md). Errors: kBadData naming a
  /// tensor of another quantised type.
  Status take_q8_0_as_int8();

  bool has(std::string_view key) const { return values_.contains(key); }
  std::vector<std::string_view> keys() const;

  /// The value of `key`, or nothing where the file has no such key. Errors: kBadData for a value of another type.
  Result<std::optional<std::int64_t>> get_int(std::string_view key) const;
  Result<std::optional<double>> get_float(std::string_view key) const;
  Result<std::optional<bool>> get_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> get_string(std::string_view key) const;

  /// Arrays; empty where the file has no such key.
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;
  Result<std::vector<std::int64_t>> get_ints(std::string_view key) const;

  /// "a string", "an array of 3 integers": what the file has under `key`, for messages and listings.
  std::string describe(std::string_view key) const;

 private:
  struct Value {
    GgufType type = GgufType::kUint8;
    GgufType element = GgufType::kUint8;  // of an array
    std::uint64_t count = 0;              // of an array
    ByteSpan bytes;                       // the value itself: string without its length, array without its header
  };
  class Parser;

  const Value* find_value(std::string_view key) const;
  tl::unexpected<Error> mismatch(std::string_view key, const char* expected) const;

  std::string source_;
  std::uint32_t version_ = 0;
  std::map<std::string_view, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, std::size_t, std::less<>> tensor_index_;
};

}  // namespace butterfly
