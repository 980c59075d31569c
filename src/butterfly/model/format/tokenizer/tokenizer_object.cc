#include <algorithm>

#include "butterfly/base/json.h"
#include "butterfly/model/format/tokenizer/tokenizer_json_steps.h"

namespace butterfly {
namespace {

/// Deepest nesting outside strings; hostile files nest millions deep to exhaust the stack of the code that walks them.
int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<nlohmann::json> parse_tokenizer_object(const std::string& text, const char* source) {
  constexpr int kDepthMax = 64;
  const int depth = json_depth(text);
  if (depth > kDepthMax) {
    return make_error(ErrorCode::kBadData, "{}: nested {} deep, at most {} is possible", source, depth, kDepthMax);
  }
  nlohmann::json document = parse_json(text);
  if (document.is_discarded()) return make_error(ErrorCode::kBadData, "{}: is not valid JSON", source);
  if (!document.is_object()) {
    return make_error(ErrorCode::kBadData, "{}: is {}, expected an object", source, document.type_name());
  }
  return document;
}

}  // namespace butterfly
