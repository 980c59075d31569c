#include <algorithm>

#include <fmt/format.h>

#include "butterfly/study/output/document.h"

namespace butterfly::study {
namespace {

constexpr std::size_t kLongestCell = 44;

/// Code points: what a terminal shows as one column each, as far as a report needs it.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string cell_text(const std::string& text) {
  if (width_of(text) <= kLongestCell) return text;
  std::string cut;
  std::size_t shown = 0;
  for (const char c : text) {
    if ((c & 0xc0) != 0x80 && ++shown > kLongestCell - 2) break;
    cut += c;
  }
  return cut + "..";
}

std::string wrapped(const std::string& text, std::size_t columns, const std::string& indent) {
  std::string result = indent, word;
  std::size_t at = indent.size();
  const auto put = [&] {
    if (word.empty()) return;
    if (at > indent.size() && at + 1 + width_of(word) > columns) {
      result += "\n" + indent;
      at = indent.size();
    } else if (at > indent.size()) {
      result += ' ';
      ++at;
    }
    result += word;
    at += width_of(word);
    word.clear();
  };
  for (const char c : text) {
    if (c == ' ') {
      put();
    } else {
      word += c;
    }
  }
  put();
  return result + "\n";
}

std::string table_text(const ReportTable& table, std::size_t columns) {
  std::vector<std::size_t> widths(table.head.size(), 0);
  const auto measure = [&widths](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(cell_text(row[i])));
    }
  };
  measure(table.head);
  for (const auto& row : table.rows) measure(row);
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text = " ";
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < row.size() ? cell_text(row[i]) : std::string();
      const std::string space(widths[i] - std::min(widths[i], width_of(cell)), ' ');
      text += ' ';
      text += static_cast<int>(i) < table.text_columns ? cell + space : space + cell;
      text += ' ';
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = table.title.empty() ? std::string() : wrapped(table.title, columns, "");
  text += line(table.head);
  std::size_t all = 0;
  for (const std::size_t width : widths) all += width + 2;
  text += "  " + std::string(all > 2 ? all - 2 : 1, '-') + "\n";
  for (const auto& row : table.rows) text += line(row);
  if (!table.note.empty()) text += wrapped(table.note, columns, "  ");
  return text;
}

}  // namespace

std::string terminal_text(const Report& report, int columns) {
  const auto width = static_cast<std::size_t>(std::clamp(columns, 60, 120));
  std::string text = report.title + "\n" + std::string(std::min(width, width_of(report.title)), '=') + "\n";
  for (const std::string& line : report.summary) text += wrapped(line, width, "");
  for (const ReportSection& section : report.sections) {
    const bool shown = !section.paragraphs.empty() ||
                       std::ranges::any_of(section.tables, [](const auto& table) { return !table.long_one; });
    if (!shown) continue;
    text += "\n" + section.title + "\n" + std::string(width_of(section.title), '-') + "\n";
    for (const std::string& paragraph : section.paragraphs) text += wrapped(paragraph, width, "");
    for (const ReportTable& table : section.tables) {
      if (!table.long_one) text += "\n" + table_text(table, width);
    }
  }
  return text;
}

}  // namespace butterfly::study
