// "<architecture>.<key>" entries of a GGUF file as the types that a ModelConfig has. Borrows the file. Thread-safe.
#pragma once

#include <climits>
#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/model/format/gguf/gguf.h"

namespace butterfly {

class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  Result<int> integer_or(std::string_view key, int fallback) const {
    BF_ASSIGN_OR_RETURN(const auto value, file_.get_int(full(key)));
    if (!value) return fallback;
    if (*value < 0 || *value > INT_MAX) {
      return make_error(ErrorCode::kBadData, "{}: {} is {}, expected 0 to {}", file_.source(), full(key), *value,
                        INT_MAX);
    }
    return static_cast<int>(*value);
  }

  Result<int> integer(std::string_view key) const {
    if (!has(key)) return missing(key);
    return integer_or(key, 0);
  }

  Result<float> number_or(std::string_view key, float fallback) const {
    BF_ASSIGN_OR_RETURN(const auto value, file_.get_float(full(key)));
    return value ? static_cast<float>(*value) : fallback;
  }

  Result<float> number(std::string_view key) const {
    if (!has(key)) return missing(key);
    return number_or(key, 0);
  }

  enum class Default { kFalse, kTrue };
  Result<bool> flag_or(std::string_view key, Default fallback) const {
    BF_ASSIGN_OR_RETURN(const auto value, file_.get_bool(full(key)));
    return value.value_or(fallback == Default::kTrue);
  }

 private:
  tl::unexpected<Error> missing(std::string_view key) const {
    return make_error(ErrorCode::kBadData, "{}: lacks the metadata key {}", file_.source(), full(key));
  }

  const GgufFile& file_;
  std::string prefix_;
};

}  // namespace butterfly
