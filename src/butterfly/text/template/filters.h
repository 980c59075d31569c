// The tables of filters. Plain data.
#pragma once

#include <span>
#include <string_view>

#include "butterfly/text/template/runtime.h"

namespace butterfly::chat {

/// arguments.values[0] is what is filtered.
using Filter = Result<Value> (*)(Runtime& runtime, const Arguments& arguments);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

/// Those that take or give lists.
std::span<const NamedFilter> list_filters();

}  // namespace butterfly::chat
