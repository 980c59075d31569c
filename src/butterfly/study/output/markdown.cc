#include <fmt/format.h>

#include "butterfly/study/output/document.h"

namespace butterfly::study {
namespace {

std::string markdown_cell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

std::string markdown_row(const std::vector<std::string>& row) {
  std::string line = "|";
  for (const std::string& cell : row) line += " " + markdown_cell(cell) + " |";
  return line + "\n";
}

std::string markdown_table(const ReportTable& table) {
  std::string text = table.title.empty() ? std::string() : "**" + table.title + "**\n\n";
  text += markdown_row(table.head) + "|";
  for (std::size_t i = 0; i < table.head.size(); ++i) {
    text += static_cast<int>(i) < table.text_columns ? "---|" : "--:|";
  }
  text += "\n";
  for (const auto& row : table.rows) text += markdown_row(row);
  text += "\n";
  if (!table.note.empty()) text += table.note + "\n\n";
  return text;
}

}  // namespace

std::string markdown_text(const Report& report) {
  std::string text = "# " + report.title + "\n\n";
  for (const std::string& line : report.summary) text += "* " + line + "\n";
  text += "\n";
  for (const ReportSection& section : report.sections) {
    text += "## " + section.title + "\n\n";
    for (const std::string& paragraph : section.paragraphs) text += paragraph + "\n\n";
    for (const ReportTable& table : section.tables) text += markdown_table(table);
  }
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace butterfly::study
