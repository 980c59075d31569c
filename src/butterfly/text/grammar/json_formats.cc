#include "butterfly/text/grammar/json_formats.h"

#include <fmt/format.h>

namespace butterfly {
namespace {

/// RFC 3339, years from 1000 on; February has 29 days where the calendar says so.
std::string date() {
  const std::string year = "[1-9][0-9]{3}";
  const std::string leap_year = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)";
  return fmt::format(
      "({0}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|{0}-(0[13-9]|1[0-2])-(29|30)|{0}-(0[13578]|1[02])-31|{1}-02-29)",
      year, leap_year);
}

std::string time() {
  return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
}

/// RFC 3339, appendix A.
std::string duration() {
  const std::string n = "[0-9]{1,4}";
  const std::string at_time = fmt::format("T({0}H({0}M({0}S)?)?|{0}M({0}S)?|{0}S)", n);
  return fmt::format("P(({0}D|{0}M({0}D)?|{0}Y({0}M({0}D)?)?)({1})?|{1}|{0}W)", n, at_time);
}

constexpr std::string_view kLabel = "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,20}){0,1}";

std::string email() {
  const std::string word = "[a-zA-Z0-9_+-]{1,20}";
  return fmt::format("{0}(\\.{0}){{0,2}}@{1}(\\.{1}){{0,2}}\\.[a-zA-Z]{{2,10}}", word, kLabel);
}

std::string hostname() {
  return fmt::format("({0}\\.){{0,4}}[a-zA-Z][a-zA-Z0-9]{{0,20}}", kLabel);
}

std::string ipv4() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  return fmt::format("{0}(\\.{0}){{3}}", byte);
}

/// RFC 4291, without IPv4 at its end.
std::string ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::string all = fmt::format("{0}(:{0}){{7}}", group);
  for (int before = 0; before <= 7; ++before) {
    const std::string head = before == 0 ? "" : fmt::format("{0}(:{0}){{{1}}}", group, before - 1);
    const std::string tail = before == 7 ? "" : fmt::format("({0}(:{0}){{0,{1}}})?", group, 6 - before);
    all += fmt::format("|{}::{}", head, tail);
  }
  return "(" + all + ")";
}

}  // namespace

std::string json_format_pattern(std::string_view format) {
  if (format == "date") return date();
  if (format == "time") return time();
  if (format == "date-time") return date() + "T" + time();
  if (format == "duration") return duration();
  if (format == "email") return email();
  if (format == "hostname") return hostname();
  if (format == "ipv4") return ipv4();
  if (format == "ipv6") return ipv6();
  if (format == "uuid") return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  return {};
}

std::string_view json_format_names() {
  return "date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid";
}

}  // namespace butterfly
