#include <fmt/format.h>

#include "butterfly/study/output/document.h"

namespace butterfly::study {
namespace {

// Colours by variables, so that light, dark and paper differ in one place. Wide tables scroll inside their own box.
constexpr std::string_view kStyle = R"css(
:root{--paper:#fff;--ink:#1d2430;--soft:#5b6675;--line:#d9dee6;--band:#f5f7fa;--mark:#0b6bcb;
--c0:#2f7ed8;--c1:#e08a00;--c2:#0e9f6e;--c3:#b455b0;--c4:#7a7fe0;--c5:#d0451b;--c6:#8a8f98;--c7:#7a5230;--c8:#e46aa3;--c9:#5aa9a4;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--paper:#14181f;--ink:#e4e8ee;--soft:#9aa5b4;--line:#2c3440;--band:#1b212a;
--mark:#62b0ff;--c0:#5aa3f0;--c1:#f0a93c;--c2:#3cc492;--c3:#d07ccb;--c4:#9b9ff2;--c5:#f07a52;--c6:#a0a6b0;--c7:#b98a63;--c8:#f08fbd;--c9:#7fcac5}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.6em;line-height:1.25;margin:.2em 0 .6em;overflow-wrap:anywhere}
h2{font-size:1.2em;margin:2em 0 .6em;padding-bottom:.25em;border-bottom:1px solid var(--line)}
h3{font-size:1em;margin:1.4em 0 .4em}
p{margin:.5em 0;max-width:78ch;overflow-wrap:anywhere}
ul.summary{list-style:none;margin:0;padding:14px 18px;background:var(--band);border-left:4px solid var(--mark);
border-radius:4px}
ul.summary li{margin:.25em 0;overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin:.3em 0}
table{border-collapse:collapse;min-width:60%;font-variant-numeric:tabular-nums;font-size:.93em}
th,td{padding:5px 12px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}
th{color:var(--soft);font-weight:600}
th.t,td.t{text-align:left;white-space:normal;min-width:7em}
th:first-child,td:first-child{padding-left:2px}
tbody tr:hover{background:var(--band)}
.note{color:var(--soft);font-size:.88em}
figure{margin:1em 0}
figcaption{font-weight:600;margin-bottom:.4em}
svg{display:block;width:100%;height:auto;max-width:960px}
.narrow{display:none}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .soft{fill:var(--soft)}
svg .axis{stroke:var(--line)}
details summary{cursor:pointer;color:var(--mark);margin:.6em 0}
nav{font-size:.92em;margin:1em 0}
nav a{color:var(--mark);text-decoration:none;margin-right:1.1em;white-space:nowrap;display:inline-block}
@media (max-width:640px){main{padding:14px 12px 32px}body{font-size:14px}th,td{padding:5px 8px}.wide{display:none}.narrow{display:block}}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--line:#bbb;--band:#f4f4f4;color-scheme:light}
nav{display:none}main{max-width:none;padding:0}h2,h3,figcaption{break-after:avoid}figure,tr{break-inside:avoid}.scroll{overflow:visible}
details::details-content{content-visibility:visible;block-size:auto}details summary{color:var(--ink);font-weight:600}
body{font-size:11px}th,td{padding:3px 6px}}
)css";

std::string html_row(const std::vector<std::string>& row, const ReportTable& table, std::string_view tag) {
  std::string text = "<tr>";
  for (std::size_t i = 0; i < row.size(); ++i) {
    const bool words = static_cast<int>(i) < table.text_columns;
    text += fmt::format("<{}{}>{}</{}>", tag, words ? " class=\"t\"" : "", escape_markup(row[i]), tag);
  }
  return text + "</tr>\n";
}

std::string html_table(const ReportTable& table) {
  std::string text;
  if (table.long_one) {
    text += fmt::format("<details><summary>{} ({} rows)</summary>\n", escape_markup(table.title), table.rows.size());
  } else if (!table.title.empty()) {
    text += "<h3>" + escape_markup(table.title) + "</h3>\n";
  }
  text += "<div class=\"scroll\"><table><thead>" + html_row(table.head, table, "th") + "</thead><tbody>\n";
  for (const auto& row : table.rows) text += html_row(row, table, "td");
  text += "</tbody></table></div>\n";
  if (!table.note.empty()) text += "<p class=\"note\">" + escape_markup(table.note) + "</p>\n";
  if (table.long_one) text += "</details>\n";
  return text;
}

}  // namespace

std::string html_page(const Report& report) {
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n",
      escape_markup(report.title), kStyle, escape_markup(report.title));
  text += "<ul class=\"summary\">\n";
  for (const std::string& line : report.summary) text += "<li>" + escape_markup(line) + "</li>\n";
  text += "</ul>\n<nav>";
  for (std::size_t i = 0; i < report.sections.size(); ++i) {
    text += fmt::format("<a href=\"#s{}\">{}</a>", i, escape_markup(report.sections[i].title));
  }
  text += "</nav>\n";
  for (std::size_t i = 0; i < report.sections.size(); ++i) {
    const ReportSection& section = report.sections[i];
    text += fmt::format("<section id=\"s{}\">\n<h2>{}</h2>\n", i, escape_markup(section.title));
    for (const std::string& paragraph : section.paragraphs) text += "<p>" + escape_markup(paragraph) + "</p>\n";
    for (const ReportFigure& figure : section.figures) {
      text += "<figure><figcaption>" + escape_markup(figure.title) + "</figcaption>\n<div class=\"wide\">\n" +
              figure.svg + "</div><div class=\"narrow\">\n" + figure.narrow_svg + "</div></figure>\n";
    }
    for (const ReportTable& table : section.tables) text += html_table(table);
    text += "</section>\n";
  }
  return text + "</main>\n</body>\n</html>\n";
}

}  // namespace butterfly::study
