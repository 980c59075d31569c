// Drawings of a report as SVG, with the page's colours. All numbers come from the study, so they are finite.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "butterfly/base/units.h"
#include "butterfly/study/output/form_parts.h"

namespace butterfly::study {
namespace {

constexpr double kWide = 960, kNarrow = 400, kBarHeight = 26;

/// A figure has the same text on a phone, and less room: names of rows are above them there.
struct Room {
  double width = kWide;

  bool narrow() const { return width < kWide; }
  double names() const { return narrow() ? 0.0 : 215.0; }
  double above() const { return narrow() ? 18.0 : 0.0; }
  double row() const { return kBarHeight + 8.0 + above(); }
  double bar() const { return width - names() - 10.0; }
  /// Of a legend with columns of `column`, where entry `at` is.
  std::pair<double, double> legend(std::size_t at, double column, double line) const {
    const auto columns = static_cast<std::size_t>(std::max(1.0, std::floor(width / column)));
    return {static_cast<double>(at % columns) * column, static_cast<double>(at / columns) * line};
  }
  double legend_height(std::size_t entries, double column, double line) const {
    return entries == 0 ? 0.0 : legend(entries - 1, column, line).second + line;
  }
};

std::string_view colour(std::size_t i) {
  constexpr std::array<std::string_view, 10> kColours{"var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)",
                                                      "var(--c5)", "var(--c6)", "var(--c7)", "var(--c8)", "var(--c9)"};
  return kColours[i % kColours.size()];
}

/// Of long names the end tells them apart.
std::string short_name(const std::string& name) {
  constexpr std::size_t kLongest = 33;
  return name.size() > kLongest ? ".." + name.substr(name.size() - kLongest + 2) : name;
}

class Svg {
 public:
  Svg(const Room& room, double height) : width_(room.width), height_(height) {}

  void text(double x, double y, const std::string& words, std::string_view more = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escape_markup(words));
  }
  void box(double x, double y, double width, double height, std::string_view fill, const std::string& title) {
    body_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>\n", x,
        y, std::max(width, 0.0), height, fill, escape_markup(title));
  }
  void line(double x1, double y1, double x2, double y2, std::string_view more) {
    body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, more);
  }
  void dot(double x, double y, double radius, std::string_view fill, const std::string& title) {
    body_ += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" "
        "fill-opacity=\"0.75\"><title>{}</title></circle>\n",
        x, y, radius, fill, escape_markup(title));
  }
  void path(const std::string& points, std::string_view more) {
    body_ += fmt::format("<path d=\"{}\" {}/>\n", points, more);
  }
  std::string str() const {
    return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\">\n{}</svg>\n",
                       width_, height_, body_);
  }

 private:
  double width_, height_;
  std::string body_;
};

/// Powers of ten that hold all values.
struct LogAxis {
  double low = 0.0, high = 1.0;  // exponents

  void hold(double value) {
    if (value <= 0.0) return;
    const double at = std::log10(value);
    low = empty ? std::floor(at) : std::min(low, std::floor(at));
    high = empty ? std::ceil(at + 1e-9) : std::max(high, std::ceil(at + 1e-9));
    empty = false;
  }
  double at(double value) const { return (std::log10(value) - low) / (high - low); }
  bool empty = true;
};

constexpr double kTop = 14, kBottom = 340;

struct RooflineAxes {
  LogAxis x, y;
  double left = 76, right = 930;

  double px(double value) const { return left + (right - left) * x.at(value); }
  double py(double value) const { return kBottom - (kBottom - kTop) * y.at(value); }
};

void draw_axes(Svg& svg, const RooflineAxes& axes) {
  for (double e = axes.x.low; e <= axes.x.high; ++e) {
    const double x = axes.px(std::pow(10.0, e));
    svg.line(x, kTop, x, kBottom, "class=\"axis\"");
    svg.text(x, kBottom + 18, fmt::format("{:g}", std::pow(10.0, e)), "text-anchor=\"middle\" class=\"soft\"");
  }
  for (double e = axes.y.low; e <= axes.y.high; ++e) {
    const double y = axes.py(std::pow(10.0, e));
    svg.line(axes.left, y, axes.right, y, "class=\"axis\"");
    svg.text(axes.left - 8, y + 4, fmt::format("{:g}", std::pow(10.0, e)), "text-anchor=\"end\" class=\"soft\"");
  }
  svg.text((axes.left + axes.right) / 2, kBottom + 36, "FLOPs per byte, from shapes",
           "text-anchor=\"middle\" class=\"soft\"");
  svg.text(16, (kTop + kBottom) / 2, "GFLOP/s",
           fmt::format("text-anchor=\"middle\" class=\"soft\" transform=\"rotate(-90 16 {})\"", (kTop + kBottom) / 2));
}

bool has_point(const OperatorTime& one) {
  return one.intensity > 0.0 && one.gflops_per_s > 0.0 && (one.kind == "matmul" || one.kind == "operation");
}

RooflineAxes roofline_axes(const WorkloadStudy& work, const Room& room) {
  RooflineAxes axes;
  if (room.narrow()) axes.left = 52;
  axes.right = room.width - 30;
  const Efficiency& all = work.efficiency;
  axes.x.hold(all.ridge);
  axes.y.hold(1e-9 * all.peak_flops);
  for (const OperatorTime& one : work.operators) {
    if (!has_point(one)) continue;
    axes.x.hold(one.intensity);
    axes.y.hold(one.gflops_per_s);
  }
  axes.x.low = std::max(std::min(axes.x.low, axes.x.high - 2), axes.x.high - 7);
  axes.y.low = std::max(std::min(axes.y.low, axes.y.high - 2), axes.y.high - 7);
  return axes;
}

/// A level of memory: bytes over their rate up to the ridge, then arithmetic. Feet can be close together, names not.
void draw_roof(Svg& svg, const RooflineAxes& axes, double peak, double gb_per_s, std::string_view name, double name_at,
               std::string_view width) {
  if (gb_per_s <= 0.0) return;
  const double left = std::pow(10.0, axes.x.low), right = std::pow(10.0, axes.x.high);
  const double foot = std::max(std::pow(10.0, axes.y.low), std::min(peak, left * gb_per_s));
  const double ridge = std::max(left, peak / gb_per_s);
  svg.path(fmt::format("M{:.1f} {:.1f} L{:.1f} {:.1f} L{:.1f} {:.1f}", axes.px(foot / gb_per_s), axes.py(foot),
                       axes.px(ridge), axes.py(peak), axes.px(right), axes.py(peak)),
           fmt::format("fill=\"none\" stroke=\"var(--ink)\" stroke-width=\"{}\"", width));
  svg.text(axes.px(foot / gb_per_s) + name_at, std::min(axes.py(foot) + 15, kBottom - 4), std::string(name),
           "class=\"soft\"");
}

std::string roofline(const WorkloadStudy& work, const Room& room) {
  const RooflineAxes axes = roofline_axes(work, room);
  const Efficiency& all = work.efficiency;
  constexpr std::ptrdiff_t kPointsMax = 14;
  const auto points = std::min(kPointsMax, std::ranges::count_if(work.operators, has_point));
  constexpr double kColumn = 290, kLine = 24;
  Svg svg(room, kBottom + 56 + room.legend_height(static_cast<std::size_t>(points), kColumn, kLine));
  draw_axes(svg, axes);
  const double peak = 1e-9 * all.peak_flops;
  for (std::size_t level = 0; level < kCacheLevels; ++level) {
    draw_roof(svg, axes, peak, all.cache_gb_per_s[level], fmt::format("L{}", level + 1),
              6.0 + 20.0 * static_cast<double>(level), "1\" stroke-dasharray=\"5 4");
  }
  draw_roof(svg, axes, peak, all.peak_gb_per_s, "memory", 6.0, "2");
  std::size_t shown = 0;
  for (const OperatorTime& one : work.operators) {
    if (!has_point(one) || static_cast<std::ptrdiff_t>(shown) == kPointsMax) continue;
    const double x = std::clamp(axes.px(one.intensity), axes.left, axes.right);
    const double y = std::clamp(axes.py(one.gflops_per_s), kTop, kBottom);
    svg.dot(x, y, 4 + 14 * std::sqrt(std::min(one.share, 1.0)), colour(shown),
            fmt::format("{} {}: {} of the time, {:.1f} GFLOP/s, {:.2f} FLOP/B", one.name, one.type,
                        percent_of(one.share), one.gflops_per_s, one.intensity));
    const auto [lx, ly] = room.legend(shown, kColumn, kLine);
    svg.dot(axes.left + lx, kBottom + 60 + ly, 5, colour(shown), one.name);
    svg.text(axes.left + lx + 11, kBottom + 64 + ly,
             fmt::format("{} {} {}", shown + 1, one.name, percent_of(one.share)));
    svg.text(x + 8, y - 6, fmt::format("{}", shown + 1), "class=\"soft\"");
    ++shown;
  }
  return svg.str();
}

constexpr double kLegendLine = 26;

std::string phases(const WorkloadStudy& work, const Room& room) {
  constexpr double kColumn = 190;
  constexpr std::size_t kTracksMax = 16;
  const std::size_t tracks = std::min(work.tracks.size(), kTracksMax);
  std::map<std::string, std::size_t> colours;
  for (std::size_t i = 0; i < tracks; ++i) {
    for (const PhaseTime& phase : work.tracks[i].phases) colours.try_emplace(phase.name, colours.size());
  }
  const double foot = static_cast<double>(tracks) * room.row();
  Svg svg(room, foot + room.legend_height(colours.size(), kColumn, kLegendLine) + 10);
  for (std::size_t i = 0; i < tracks; ++i) {
    const TrackTime& track = work.tracks[i];
    const double y = static_cast<double>(i) * room.row();
    svg.text(0, y + (room.narrow() ? 13 : 18), short_name(track.name));
    double x = room.names();
    for (const PhaseTime& phase : track.phases) {
      const double width = room.bar() * phase.share;
      svg.box(x, y + room.above(), width, kBarHeight, colour(colours[phase.name]),
              fmt::format("{}: {}", phase.name, percent_of(phase.share)));
      x += width;
    }
  }
  for (const auto& [name, at] : colours) {
    const auto [x, y] = room.legend(at, kColumn, kLegendLine);
    svg.box(x, foot + 9 + y, 13, 13, colour(at), name);
    svg.text(x + 20, foot + 20 + y, name);
  }
  return svg.str();
}

std::string timeline(const WorkloadStudy& work, const Room& room) {
  constexpr double kColumn = 130;
  constexpr std::array<std::string_view, 5> kKinds{"matmul", "operation", "communication", "wait", "other"};
  double begin = work.timeline.front().begin_s, end = begin;
  std::map<std::string, std::size_t> rows;
  for (const TimelineBar& bar : work.timeline) {
    begin = std::min(begin, bar.begin_s);
    end = std::max(end, bar.end_s);
    rows.try_emplace(bar.track, rows.size());
  }
  const double scale = room.bar() / std::max(end - begin, 1e-12);
  const double foot = static_cast<double>(rows.size()) * room.row() + 18;
  Svg svg(room, foot + room.legend_height(kKinds.size(), kColumn, kLegendLine) + 8);
  for (const auto& [name, row] : rows) {
    const double y = static_cast<double>(row) * room.row();
    svg.text(0, y + (room.narrow() ? 13 : 18), short_name(name));
    svg.line(room.names(), y + room.row() - 4, room.width - 10, y + room.row() - 4, "class=\"axis\"");
  }
  for (const TimelineBar& bar : work.timeline) {
    const auto kind = static_cast<std::size_t>(std::ranges::find(kKinds, bar.kind) - kKinds.begin());
    svg.box(room.names() + (bar.begin_s - begin) * scale,
            static_cast<double>(rows[bar.track]) * room.row() + room.above(),
            std::max((bar.end_s - bar.begin_s) * scale, 0.3), kBarHeight, colour(kind),
            fmt::format("{}: {}", bar.name, format_seconds(bar.end_s - bar.begin_s)));
  }
  svg.text(room.width - 10, foot, format_seconds(end - begin), "text-anchor=\"end\" class=\"soft\"");
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    const auto [x, y] = room.legend(i, kColumn, kLegendLine);
    svg.box(x, foot + 12 + y, 13, 13, colour(i), std::string(kKinds[i]));
    svg.text(x + 20, foot + 23 + y, std::string(kKinds[i]));
  }
  return svg.str();
}

std::string memory(const MemoryUse& use, const Room& room) {
  constexpr double kLow = 190, kHigh = 16, kPlotLeft = 80, kColumn = 122;
  const double plot_right = room.width - 20;
  const double begin = use.timeline.front().at_s, span = std::max(1e-9, use.timeline.back().at_s - begin);
  double most = 1.0;
  for (const MemoryPoint& point : use.timeline) {
    double held = 0.0;
    for (const double bytes : point.held) held += bytes;
    most = std::max({most, point.resident, held});
  }
  const auto px = [&](double at) { return kPlotLeft + (plot_right - kPlotLeft) * (at - begin) / span; };
  const auto py = [&](double bytes) { return kLow - (kLow - kHigh) * bytes / most; };
  const std::size_t owners = use.timeline.front().held.size();
  Svg svg(room, 216 + room.legend_height(owners + 1, kColumn, kLegendLine));
  for (const double part : {0.0, 0.5, 1.0}) {
    svg.line(kPlotLeft, py(part * most), plot_right, py(part * most), "class=\"axis\"");
    svg.text(kPlotLeft - 8, py(part * most) + 4, short_bytes(part * most), "text-anchor=\"end\" class=\"soft\"");
  }
  std::vector<double> base(use.timeline.size(), 0.0);
  std::size_t shown = 0;
  const auto legend = [&](const std::string& name, std::string_view fill) {
    const auto [x, y] = room.legend(shown++, kColumn, kLegendLine);
    svg.box(x, 222 + y, 13, 13, fill, name);
    svg.text(x + 19, 233 + y, name);
  };
  for (std::size_t owner = 0; owner < owners; ++owner) {
    std::string above, below;
    bool any = false;
    for (std::size_t i = 0; i < use.timeline.size(); ++i) {
      const double x = px(use.timeline[i].at_s), low = base[i];
      base[i] += use.timeline[i].held[owner];
      any = any || use.timeline[i].held[owner] > 0.0;
      above += fmt::format("{}{:.1f} {:.1f} ", above.empty() ? "M" : "L", x, py(base[i]));
      below.insert(0, fmt::format("L{:.1f} {:.1f} ", x, py(low)));
    }
    if (!any) continue;
    svg.path(above + below + "Z", fmt::format("fill=\"{}\" fill-opacity=\"0.8\"", colour(owner)));
    legend(std::string(to_string(static_cast<trace::Owner>(owner))), colour(owner));
  }
  std::string resident;
  for (const MemoryPoint& point : use.timeline) {
    resident += fmt::format("{}{:.1f} {:.1f} ", resident.empty() ? "M" : "L", px(point.at_s), py(point.resident));
  }
  svg.path(resident, "fill=\"none\" stroke=\"var(--ink)\" stroke-width=\"2\"");
  legend("resident", "var(--ink)");
  svg.text(plot_right, kLow + 16, fmt::format("{:.1f} s", begin + span), "text-anchor=\"end\" class=\"soft\"");
  svg.text(kPlotLeft, kLow + 16, fmt::format("{:.1f} s", begin), "class=\"soft\"");
  return svg.str();
}

template <typename Draw>
ReportFigure figure(std::string title, const Draw& draw) {
  return {.title = std::move(title), .svg = draw(Room{}), .narrow_svg = draw(Room{.width = kNarrow})};
}

}  // namespace

ReportFigure roofline_figure(const WorkloadStudy& work) {
  const Efficiency& all = work.efficiency;
  return figure(fmt::format("Roofline of {}: {:.0f} GFLOP/s, {:.1f} GB/s, ridge {:.1f} FLOP/B; larger points take more "
                            "time",
                            to_string(work.kind), 1e-9 * all.peak_flops, all.peak_gb_per_s, all.ridge),
                [&work](const Room& room) { return roofline(work, room); });
}

ReportFigure phases_figure(const WorkloadStudy& work) {
  return figure(fmt::format("Where a step of {} goes", to_string(work.kind)),
                [&work](const Room& room) { return phases(work, room); });
}

ReportFigure timeline_figure(const WorkloadStudy& work) {
  return figure(fmt::format("One step of {}; what no operation covers is left white", to_string(work.kind)),
                [&work](const Room& room) { return timeline(work, room); });
}

ReportFigure memory_figure(const MemoryUse& use) {
  return figure("Memory of " + use.process, [&use](const Room& room) { return memory(use, room); });
}

}  // namespace butterfly::study
