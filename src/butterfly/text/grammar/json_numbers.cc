#include "butterfly/text/grammar/json_numbers.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace butterfly {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr std::size_t kWholeDigits = 18;
constexpr std::size_t kDigits = 15;
constexpr std::uint64_t kMultipleMost = 1000;

/// A bound as people write it; magnitude without leading and trailing zeros.
struct Decimal {
  bool negative = false;
  std::string whole{};  // "" is 0
  std::string fraction{};
  bool inclusive = true;

  bool is_zero() const { return whole.empty() && fraction.empty(); }
};

Result<Decimal> decimal_of(const nlohmann::json& number, std::string_view keyword) {
  if (!number.is_number()) {
    return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected a number", keyword, dump_json(number));
  }
  std::string text = number.is_number_float() ? fmt::format("{}", number.get<double>()) : dump_json(number);
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  if (const std::size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::atoi(text.c_str() + e + 1);
    text.erase(e);
  }
  if (text.find_first_not_of("0123456789.") != std::string::npos || std::abs(exponent) > 40) {
    return make_error(ErrorCode::kInvalidArgument, "{} is {}, which has more digits than are possible", keyword,
                      dump_json(number));
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  int places = static_cast<int>(point) + exponent;
  if (places < 0) {
    digits.insert(0, static_cast<std::size_t>(-places), '0');
    places = 0;
  }
  if (static_cast<std::size_t>(places) > digits.size()) digits.resize(static_cast<std::size_t>(places), '0');
  decimal.whole = digits.substr(0, static_cast<std::size_t>(places));
  decimal.fraction = digits.substr(static_cast<std::size_t>(places));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  while (decimal.fraction.ends_with('0')) decimal.fraction.pop_back();
  return decimal;
}

/// -1, 0 or 1, of magnitudes.
int compare(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  const std::string left = a.whole + a.fraction;
  const std::string right = b.whole + b.fraction;
  return left < right ? -1 : left > right ? 1 : 0;
}

int compare_signed(const Decimal& a, const Decimal& b) {
  const bool left = a.negative && !a.is_zero();
  const bool right = b.negative && !b.is_zero();
  if (left != right) return left ? -1 : 1;
  return left ? compare(b, a) : compare(a, b);
}

/// The texts of numbers from `low` to `high`, neither negative.
class Magnitudes {
 public:
  Magnitudes(GrammarBuilder& builder, Decimal low, std::optional<Decimal> high, bool whole, std::uint64_t multiple)
      : builder_(builder), low_(std::move(low)), high_(std::move(high)), whole_(whole), multiple_(multiple) {}

  Expr make() {
    nodes_.emplace_back();  // the start
    const std::string low = low_.whole.empty() ? "0" : low_.whole;
    const std::string high = !high_ ? "" : high_->whole.empty() ? "0" : high_->whole;
    low_digits_ = low;
    high_digits_ = high;
    const std::size_t most = high_ ? std::min(high.size(), digits_max()) : digits_max();
    for (std::size_t size = low.size(); size <= most; ++size) {
      const Place first{
          .size = size, .left = size, .at_low = size == low.size(), .at_high = high_ && size == high.size()};
      link(0, node_of(first), std::nullopt);
    }
    std::vector<GrammarBuilder::Edge> edges;
    while (!open_.empty()) {
      const Place place = open_.back();
      open_.pop_back();
      expand(place);
    }
    for (const auto& [ends, digits] : digits_) {
      edges.push_back({.from = ends.first, .to = ends.second, .expr = builder_.byte_set(digits)});
    }
    for (const auto& [from, to] : jumps_) edges.push_back({.from = from, .to = to, .expr = builder_.empty()});
    return builder_.graph(static_cast<std::uint32_t>(nodes_.size()), std::move(edges), finals_);
  }

  bool empty() const { return finals_.empty(); }

 private:
  /// Between two digits.
  struct Place {
    std::size_t size = 0;    // of the whole part; 0 where it no longer matters
    std::size_t left = 0;    // digits to come in the whole part
    std::size_t places = 0;  // digits of the fraction, one more; 0: before its point
    bool at_low = false;     // all digits were those of the bound
    bool at_high = false;
    std::uint64_t rest = 0;  // modulo multiple_
    auto operator<=>(const Place&) const = default;
  };

  std::size_t digits_max() const { return whole_ ? kWholeDigits : kDigits; }

  std::uint32_t node_of(const Place& place) {
    const auto [found, is_new] = numbers_.try_emplace(place, static_cast<std::uint32_t>(nodes_.size()));
    if (is_new) {
      nodes_.push_back(place);
      open_.push_back(place);
    }
    return found->second;
  }

  void link(std::uint32_t from, std::uint32_t to, std::optional<unsigned> digit) {
    if (!digit) {
      jumps_.emplace_back(from, to);
    } else {
      digits_[{from, to}].set('0' + *digit);
    }
  }

  static unsigned digit_at(const std::string& digits, std::size_t place) {
    return place < digits.size() ? static_cast<unsigned>(digits[place] - '0') : 0;
  }

  void expand(const Place& place) {
    const std::uint32_t node = numbers_.at(place);
    if (place.left > 0) {
      const std::size_t at = place.size == 0 ? 0 : place.size - place.left;
      const bool leads = place.size > 1 && at == 0;
      for (unsigned digit = leads ? 1 : 0; digit <= 9; ++digit) {
        step(node, place, digit, digit_at(low_digits_, at), digit_at(high_digits_, at));
      }
      return;
    }
    if (may_end(place)) finals_.push_back(node);
    if (whole_) return;
    if (place.places == 0) {
      Place behind = place;
      behind.places = 1;
      if (place.size < kDigits) digits_[{node, node_of(behind)}].set('.');
      return;
    }
    if (place.places - 1 >= kDigits - place.size) return;
    for (unsigned digit = 0; digit <= 9; ++digit) {
      const std::string none;
      step(node, place, digit, digit_at(low_.fraction, place.places - 1),
           digit_at(high_ ? high_->fraction : none, place.places - 1));
    }
  }

  void step(std::uint32_t node, const Place& place, unsigned digit, unsigned low, unsigned high) {
    if (place.at_low && digit < low) return;
    if (place.at_high && digit > high) return;
    Place next = place;
    if (place.left > 0) {
      --next.left;
      next.rest = (place.rest * 10 + digit) % multiple_;
    } else {
      ++next.places;
    }
    next.at_low = place.at_low && digit == low;
    next.at_high = place.at_high && digit == high;
    // Free of both bounds, only what is left to write counts.
    if (whole_ && !next.at_low && !next.at_high) next.size = 0;
    link(node, node_of(next), digit);
  }

  bool may_end(const Place& place) const {
    if (place.rest != 0 || place.places == 1) return false;
    const std::size_t written = place.places == 0 ? 0 : place.places - 1;
    if (place.at_low && (written < low_.fraction.size() || !low_.inclusive)) return false;
    return !place.at_high || written < high_->fraction.size() || high_->inclusive;
  }

  GrammarBuilder& builder_;
  const Decimal low_;
  const std::optional<Decimal> high_;
  const bool whole_;
  const std::uint64_t multiple_;
  std::string low_digits_;
  std::string high_digits_;
  std::vector<Place> nodes_;
  std::vector<Place> open_;
  std::map<Place, std::uint32_t> numbers_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, GrammarBuilder::ByteSet> digits_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> jumps_;
  std::vector<std::uint32_t> finals_;
};

/// The tighter of two bounds; `sign` is 1 for lower ones.
void tighten(std::optional<Decimal>& bound, const Decimal& other, int sign) {
  const int order = bound ? sign * compare_signed(other, *bound) : 1;
  if (order > 0 || (order == 0 && !other.inclusive)) bound = other;
}

}  // namespace

Result<Expr> add_number(GrammarBuilder& builder, const NumberBounds& bounds) {
  std::optional<Decimal> low;
  std::optional<Decimal> high;
  struct Given {
    const nlohmann::json& value;
    const char* keyword;
    bool inclusive;
    bool lower;
  };
  for (const Given& given :
       {Given{bounds.minimum, "minimum", true, true}, Given{bounds.maximum, "maximum", true, false},
        Given{bounds.exclusive_minimum, "exclusiveMinimum", false, true},
        Given{bounds.exclusive_maximum, "exclusiveMaximum", false, false}}) {
    if (given.value.is_null()) continue;
    BF_ASSIGN_OR_RETURN(Decimal decimal, decimal_of(given.value, given.keyword));
    if (!bounds.whole && decimal.whole.size() + decimal.fraction.size() > kDigits) {
      return make_error(ErrorCode::kInvalidArgument, "{} is {}, which has more than {} digits", given.keyword,
                        dump_json(given.value), kDigits);
    }
    decimal.inclusive = given.inclusive;
    tighten(given.lower ? low : high, decimal, given.lower ? 1 : -1);
  }
  std::uint64_t multiple = 1;
  if (!bounds.multiple_of.is_null()) {
    const nlohmann::json& given = bounds.multiple_of;
    const double value = given.is_number() ? given.get<double>() : 0;
    if (!(value >= 1 && value <= kMultipleMost) || value != static_cast<double>(static_cast<std::uint64_t>(value))) {
      return make_error(ErrorCode::kInvalidArgument, "multipleOf is {}, possible are whole numbers from 1 to {}",
                        dump_json(given), kMultipleMost);
    }
    multiple = static_cast<std::uint64_t>(value);
  }
  const bool whole = bounds.whole || !bounds.multiple_of.is_null();
  const Decimal zero;
  std::vector<Expr> options;
  // From zero up.
  if (!high || !high->negative || high->is_zero()) {
    const bool above = low && !low->negative && !low->is_zero();
    Decimal from = above || (low && low->is_zero()) ? *low : zero;
    Magnitudes magnitudes(builder, from, high, whole, multiple);
    const Expr expr = magnitudes.make();
    if (!magnitudes.empty()) options.push_back(expr);
  }
  // Below zero: the magnitudes between those of the bounds, the other way round.
  if (!low || (low->negative && !low->is_zero())) {
    Decimal from = zero;
    if (high && high->negative && !high->is_zero()) from = *high;
    if (from.is_zero()) from.inclusive = false;
    Magnitudes magnitudes(builder, from, low, whole, multiple);
    const Expr expr = magnitudes.make();
    if (!magnitudes.empty()) options.push_back(builder.sequence({builder.bytes("-"), expr}));
  }
  if (options.empty()) return make_error(ErrorCode::kInvalidArgument, "no number is within these bounds");
  return builder.choice(std::move(options));
}

}  // namespace butterfly
