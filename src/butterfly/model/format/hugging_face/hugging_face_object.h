// Typed access to one JSON object of a config.json; null counts as absent. Borrows the object. Thread-safe.
#pragma once

#include <climits>
#include <string>
#include <vector>
#include "butterfly/base/json.h"

#include "butterfly/base/result.h"
#include "butterfly/base/text/printable.h"

namespace butterfly {

class JsonObject {
 public:
  JsonObject(const nlohmann::json& object, std::string source) : object_(object), source_(std::move(source)) {}

  const std::string& source() const { return source_; }

  const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<int> integer_or(const char* key, int fallback) const {
    const nlohmann::json* value = find(key);
    if (!value) return fallback;
    if (!value->is_number_integer()) return mismatch(key, *value, "an integer");
    const bool fits = value->is_number_unsigned()
                          ? value->get<std::uint64_t>() <= INT_MAX
                          : value->get<std::int64_t>() >= 0 && value->get<std::int64_t>() <= INT_MAX;
    if (!fits)
      return make_error(ErrorCode::kBadData, "{}: {} is {}, expected 0 to {}", source_, key, value->dump(), INT_MAX);
    return value->get<int>();
  }
  Result<int> integer(const char* key) const {
    if (!find(key)) return make_error(ErrorCode::kBadData, "{}: lacks {}", source_, key);
    return integer_or(key, 0);
  }
  Result<float> number_or(const char* key, float fallback) const {
    const nlohmann::json* value = find(key);
    if (!value) return fallback;
    if (!value->is_number()) return mismatch(key, *value, "a number");
    return static_cast<float>(value->get<double>());
  }
  Result<float> number(const char* key) const {
    if (!find(key)) return make_error(ErrorCode::kBadData, "{}: lacks {}", source_, key);
    return number_or(key, 0);
  }
  Result<std::string> text_or(const char* key, const char* fallback) const {
    const nlohmann::json* value = find(key);
    if (!value) return std::string(fallback);
    if (!value->is_string()) return mismatch(key, *value, "a string");
    return value->get<std::string>();
  }

  /// Empty where there is none.
  Result<std::vector<float>> numbers(const char* key) const {
    std::vector<float> numbers;
    const nlohmann::json* value = find(key);
    if (!value) return numbers;
    if (!value->is_array()) return mismatch(key, *value, "a list of numbers");
    for (const nlohmann::json& item : *value) {
      if (!item.is_number()) return mismatch(key, item, "numbers alone");
      numbers.push_back(static_cast<float>(item.get<double>()));
    }
    return numbers;
  }
  Result<std::vector<std::string>> texts(const char* key) const {
    std::vector<std::string> texts;
    const nlohmann::json* value = find(key);
    if (!value) return texts;
    if (!value->is_array()) return mismatch(key, *value, "a list of strings");
    for (const nlohmann::json& item : *value) {
      if (!item.is_string()) return mismatch(key, item, "strings alone");
      texts.push_back(item.get<std::string>());
    }
    return texts;
  }

  enum class Default { kFalse, kTrue };
  Result<bool> flag_or(const char* key, Default fallback) const {
    const nlohmann::json* value = find(key);
    if (!value) return fallback == Default::kTrue;
    if (!value->is_boolean()) return mismatch(key, *value, "true or false");
    return value->get<bool>();
  }

 private:
  tl::unexpected<Error> mismatch(const char* key, const nlohmann::json& value, const char* expected) const {
    return make_error(ErrorCode::kBadData, "{}: {} is {}, expected {}", source_, key, value.type_name(), expected);
  }

  const nlohmann::json& object_;
  std::string source_;
};

inline tl::unexpected<Error> unsupported(const JsonObject& object, const char* key, std::string_view value,
                                         const char* supported) {
  return make_error(ErrorCode::kUnsupported, "{}: {} is {}, supported is {}", object.source(), key, printable(value),
                    supported);
}

}  // namespace butterfly
