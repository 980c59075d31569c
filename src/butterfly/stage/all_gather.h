// One exchange in which every member says a few numbers and hears everybody's.
#pragma once

#include <type_traits>
#include <vector>

#include "butterfly/wire/exchange/exchange.h"

namespace butterfly {

/// By member, this one's own among them. Errors: those of the exchange.
template <typename T>
Result<std::vector<T>> all_gather(Exchange& exchange, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>, "what is told travels as its bytes");
  std::vector<T> said(static_cast<std::size_t>(exchange.size()), mine);
  const std::vector<ByteSpan> to(said.size(), std::as_bytes(std::span(&mine, 1)));
  std::vector<MutableByteSpan> from;
  for (T& one : said) from.push_back(std::as_writable_bytes(std::span(&one, 1)));
  BF_TRY(exchange.exchange(to, from));
  return said;
}

}  // namespace butterfly
