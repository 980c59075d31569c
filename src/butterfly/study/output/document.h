// A report as text, tables and figures, from which the terminal's, the Markdown and the HTML page are made. Plain data.
#pragma once

#include <string>
#include <vector>

namespace butterfly::study {

struct ReportTable {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  int text_columns = 1;  // at the left: aligned left; all others are numbers
  std::string note{};
  bool long_one = false;  // files show it, the terminal does not
};

struct ReportFigure {
  std::string title;
  std::string svg;
  std::string narrow_svg;  // the same for a phone
};

struct ReportSection {
  std::string title;
  std::vector<std::string> paragraphs{};
  std::vector<ReportTable> tables{};
  std::vector<ReportFigure> figures{};
};

struct Report {
  std::string title;
  std::vector<std::string> summary{};
  std::vector<ReportSection> sections{};
};

std::string terminal_text(const Report& report, int columns = 100);
std::string markdown_text(const Report& report);
/// One page, with nothing from elsewhere.
std::string html_page(const Report& report);

/// "12.3 %"
std::string percent_of(double share);
/// 1.25e9 -> "1.25 G"
std::string short_number(double value);
/// Bytes that are no whole number.
std::string short_bytes(double bytes);
/// "12.3 ms +- 0.4 ms"; without the second where there is no interval.
std::string with_interval(double seconds, double half_width);
/// For HTML and SVG.
std::string escape_markup(const std::string& text);

}  // namespace butterfly::study
