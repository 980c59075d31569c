// Drawings of a report as SVG, with the page's colours. All numbers come from the study, so they are finite.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "butterfly/base/units.h"
#include "butterfly/study/output/form_parts.h"

namespace butterfly::study {
namespace {

constexpr double kFigureWidth = 960;

std::string_view colour(std::size_t i) {
  constexpr std::array<std::string_view, 10> kColours{"var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)",
                                                      "var(--c5)", "var(--c6)", "var(--c7)", "var(--c8)", "var(--c9)"};
  return kColours[i % kColours.size()];
}

/// Of long names the end tells them apart.
std::string short_name(const std::string& name) {
  constexpr std::size_t kLongest = 28;
  return name.size() > kLongest ? ".." + name.substr(name.size() - kLongest + 2) : name;
}

class Svg {
 public:
  explicit Svg(double height) : height_(height) {}

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
                       kFigureWidth, height_, body_);
  }

 private:
  double height_;
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

constexpr double kLeft = 76, kRight = 930, kTop = 14, kBottom = 340;

struct RooflineAxes {
  LogAxis x, y;

  double px(double value) const { return kLeft + (kRight - kLeft) * x.at(value); }
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
    svg.line(kLeft, y, kRight, y, "class=\"axis\"");
    svg.text(kLeft - 8, y + 4, fmt::format("{:g}", std::pow(10.0, e)), "text-anchor=\"end\" class=\"soft\"");
  }
  svg.text((kLeft + kRight) / 2, kBottom + 36, "FLOPs per byte, from shapes", "text-anchor=\"middle\" class=\"soft\"");
  svg.text(16, (kTop + kBottom) / 2, "GFLOP/s",
           fmt::format("text-anchor=\"middle\" class=\"soft\" transform=\"rotate(-90 16 {})\"", (kTop + kBottom) / 2));
}

bool has_point(const OperatorTime& one) {
  return one.intensity > 0.0 && one.gflops_per_s > 0.0 && (one.kind == "matmul" || one.kind == "operation");
}

RooflineAxes roofline_axes(const WorkloadStudy& work) {
  RooflineAxes axes;
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

/// A level of memory: bytes over their rate up to the ridge, then arithmetic.
void draw_roof(Svg& svg, const RooflineAxes& axes, double peak, double gb_per_s, std::string_view name,
               std::string_view width) {
  if (gb_per_s <= 0.0) return;
  const double left = std::pow(10.0, axes.x.low), right = std::pow(10.0, axes.x.high);
  const double foot = std::max(std::pow(10.0, axes.y.low), std::min(peak, left * gb_per_s));
  const double ridge = std::max(left, peak / gb_per_s);
  svg.path(fmt::format("M{:.1f} {:.1f} L{:.1f} {:.1f} L{:.1f} {:.1f}", axes.px(foot / gb_per_s), axes.py(foot),
                       axes.px(ridge), axes.py(peak), axes.px(right), axes.py(peak)),
           fmt::format("fill=\"none\" stroke=\"var(--ink)\" stroke-width=\"{}\"", width));
  svg.text(axes.px(foot / gb_per_s) + 6, axes.py(foot) - 4, std::string(name), "class=\"soft\"");
}

}  // namespace

ReportFigure roofline_figure(const WorkloadStudy& work) {
  const RooflineAxes axes = roofline_axes(work);
  const Efficiency& all = work.efficiency;
  constexpr std::ptrdiff_t kPointsMax = 14;
  const auto points = std::min(kPointsMax, std::ranges::count_if(work.operators, has_point));
  Svg svg(kBottom + 56 + 24 * std::ceil(static_cast<double>(points) / 3));
  draw_axes(svg, axes);
  const double peak = 1e-9 * all.peak_flops;
  for (std::size_t level = 0; level < kCacheLevels; ++level) {
    draw_roof(svg, axes, peak, all.cache_gb_per_s[level], fmt::format("L{}", level + 1), "1\" stroke-dasharray=\"5 4");
  }
  draw_roof(svg, axes, peak, all.peak_gb_per_s, "memory", "2");
  std::size_t shown = 0;
  for (const OperatorTime& one : work.operators) {
    if (!has_point(one) || static_cast<std::ptrdiff_t>(shown) == kPointsMax) continue;
    const double x = std::clamp(axes.px(one.intensity), kLeft, kRight);
    const double y = std::clamp(axes.py(one.gflops_per_s), kTop, kBottom);
    svg.dot(x, y, 4 + 14 * std::sqrt(std::min(one.share, 1.0)), colour(shown),
            fmt::format("{} {}: {} of the time, {:.1f} GFLOP/s, {:.2f} FLOP/B", one.name, one.type,
                        percent_of(one.share), one.gflops_per_s, one.intensity));
    const double lx = kLeft + static_cast<double>(shown % 3) * 290,
                 ly = kBottom + 64 + static_cast<double>(shown / 3) * 24;
    svg.dot(lx, ly - 4, 5, colour(shown), one.name);
    svg.text(lx + 11, ly, fmt::format("{} {} {}", shown + 1, one.name, percent_of(one.share)));
    svg.text(x + 8, y - 6, fmt::format("{}", shown + 1), "class=\"soft\"");
    ++shown;
  }
  return {
      .title = fmt::format("Roofline of {}: {:.0f} GFLOP/s, {:.1f} GB/s, ridge {:.1f} FLOP/B; larger points take more "
                           "time",
                           to_string(work.kind), peak, all.peak_gb_per_s, all.ridge),
      .svg = svg.str()};
}

ReportFigure phases_figure(const WorkloadStudy& work) {
  constexpr double kNames = 190, kBar = kFigureWidth - kNames - 10, kRow = 34;
  constexpr std::size_t kTracksMax = 16;
  const std::size_t tracks = std::min(work.tracks.size(), kTracksMax);
  std::map<std::string, std::size_t> colours;
  for (std::size_t i = 0; i < tracks; ++i) {
    for (const PhaseTime& phase : work.tracks[i].phases) colours.try_emplace(phase.name, colours.size());
  }
  const double legend = 26 * (1 + std::floor(static_cast<double>(colours.size()) / 5.01));
  Svg svg(static_cast<double>(tracks) * kRow + legend + 10);
  for (std::size_t i = 0; i < tracks; ++i) {
    const TrackTime& track = work.tracks[i];
    const double y = static_cast<double>(i) * kRow;
    svg.text(0, y + 18, short_name(track.name));
    double x = kNames;
    for (const PhaseTime& phase : track.phases) {
      const double width = kBar * phase.share;
      svg.box(x, y, width, kRow - 8, colour(colours[phase.name]),
              fmt::format("{}: {}", phase.name, percent_of(phase.share)));
      x += width;
    }
  }
  for (const auto& [name, at] : colours) {
    const double x = static_cast<double>(at % 5) * 190,
                 y = static_cast<double>(tracks) * kRow + 20 + 26 * std::floor(static_cast<double>(at) / 5);
    svg.box(x, y - 11, 13, 13, colour(at), name);
    svg.text(x + 20, y, name);
  }
  return {.title = fmt::format("Where a step of {} goes", to_string(work.kind)), .svg = svg.str()};
}

ReportFigure timeline_figure(const WorkloadStudy& work) {
  constexpr double kNames = 190, kRow = 34;
  constexpr std::array<std::string_view, 5> kKinds{"matmul", "operation", "communication", "wait", "other"};
  double begin = work.timeline.front().begin_s, end = begin;
  std::map<std::string, std::size_t> rows;
  for (const TimelineBar& bar : work.timeline) {
    begin = std::min(begin, bar.begin_s);
    end = std::max(end, bar.end_s);
    rows.try_emplace(bar.track, rows.size());
  }
  const double scale = (kFigureWidth - kNames - 10) / std::max(end - begin, 1e-12);
  const double foot = static_cast<double>(rows.size()) * kRow + 18;
  Svg svg(foot + 34);
  for (const auto& [name, row] : rows) {
    const double y = static_cast<double>(row) * kRow;
    svg.text(0, y + 18, short_name(name));
    svg.line(kNames, y + kRow - 4, kFigureWidth - 10, y + kRow - 4, "class=\"axis\"");
  }
  for (const TimelineBar& bar : work.timeline) {
    const auto kind = static_cast<std::size_t>(std::ranges::find(kKinds, bar.kind) - kKinds.begin());
    svg.box(kNames + (bar.begin_s - begin) * scale, static_cast<double>(rows[bar.track]) * kRow,
            std::max((bar.end_s - bar.begin_s) * scale, 0.3), kRow - 8, colour(kind),
            fmt::format("{}: {}", bar.name, format_seconds(bar.end_s - bar.begin_s)));
  }
  svg.text(kFigureWidth - 10, foot, format_seconds(end - begin), "text-anchor=\"end\" class=\"soft\"");
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    svg.box(static_cast<double>(i) * 150, foot + 12, 13, 13, colour(i), std::string(kKinds[i]));
    svg.text(static_cast<double>(i) * 150 + 20, foot + 23, std::string(kKinds[i]));
  }
  return {.title = fmt::format("One step of {}; what no operation covers is left white", to_string(work.kind)),
          .svg = svg.str()};
}

ReportFigure memory_figure(const MemoryUse& use) {
  constexpr double kLow = 190, kHigh = 16, kPlotLeft = 80, kPlotRight = 940;
  const double begin = use.timeline.front().at_s, span = std::max(1e-9, use.timeline.back().at_s - begin);
  double most = 1.0;
  for (const MemoryPoint& point : use.timeline) {
    double held = 0.0;
    for (const double bytes : point.held) held += bytes;
    most = std::max({most, point.resident, held});
  }
  const auto px = [&](double at) { return kPlotLeft + (kPlotRight - kPlotLeft) * (at - begin) / span; };
  const auto py = [&](double bytes) { return kLow - (kLow - kHigh) * bytes / most; };
  Svg svg(250);
  for (const double part : {0.0, 0.5, 1.0}) {
    svg.line(kPlotLeft, py(part * most), kPlotRight, py(part * most), "class=\"axis\"");
    svg.text(kPlotLeft - 8, py(part * most) + 4, short_bytes(part * most), "text-anchor=\"end\" class=\"soft\"");
  }
  const std::size_t owners = use.timeline.front().held.size();
  std::vector<double> base(use.timeline.size(), 0.0);
  std::size_t shown = 0;
  const auto legend = [&](const std::string& name, std::string_view fill) {
    const double x = kPlotLeft + static_cast<double>(shown++) * 122;
    svg.box(x, 222, 13, 13, fill, name);
    svg.text(x + 19, 233, name);
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
  svg.text(kPlotRight, kLow + 16, fmt::format("{:.1f} s", begin + span), "text-anchor=\"end\" class=\"soft\"");
  svg.text(kPlotLeft, kLow + 16, fmt::format("{:.1f} s", begin), "class=\"soft\"");
  return {.title = "Memory of " + use.process, .svg = svg.str()};
}

}  // namespace butterfly::study
