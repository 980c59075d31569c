// JSON bodies of requests, which come from anyone: parsed within bounds, and read field by field with errors that name
// the field. Not thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/serve/protocol/api_error.h"

namespace butterfly {

using ApiJson = nlohmann::ordered_json;

inline constexpr int kJsonDepthMax = 64;

/// An object. Errors name the byte of invalid UTF-8, the depth, or that it is no JSON.
std::optional<ApiError> parse_body(std::string_view text, ApiJson& body);

/// Whether brackets nest at most this deep; what stands in strings does not count.
bool is_nested_within(std::string_view text, int depth);

struct NumberRange {
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
};

/// The fields of one object. The first error counts; after it nothing is read.
class JsonFields {
 public:
  /// `path` stands before names in errors: "messages[0]"; empty at the top. All outlive this.
  JsonFields(const ApiJson& object, std::string path, std::optional<ApiError>& error);

  /// The value of `name`, which is a known name from now on; null where it is absent or null.
  const ApiJson* find(const char* name);
  bool read(const char* name, bool& value);
  bool read(const char* name, std::string& value);
  bool read(const char* name, float& value, const NumberRange& range);
  bool read(const char* name, std::int64_t& value, const NumberRange& range);
  /// A string or a list of them.
  bool read(const char* name, std::vector<std::string>& value, std::size_t most);
  const ApiJson* list(const char* name);
  const ApiJson* object(const char* name);
  const std::string& required(const char* name);

  /// Names that change nothing here.
  void ignore(std::initializer_list<const char*> names);
  /// Names that cannot be had, whatever value but null and `harmless` they have.
  void refuse(const char* name, const ApiJson& harmless, const char* why);
  /// Refuses names that nobody asked for.
  void finish();

  bool ok() const { return !error_.has_value(); }
  void fail(const std::string& name, const std::string& message, const char* code = "invalid_value");
  std::string path_of(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }

 private:
  bool wrong_type(const char* name, const ApiJson& value, const char* wanted);

  const ApiJson& object_;
  const std::string path_;
  std::optional<ApiError>& error_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace butterfly
