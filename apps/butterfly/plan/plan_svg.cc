// butterfly plan --svg: who has which layers and slices, how long each takes and how full it gets, and the strategies
// side by side. One file, no scripts, no fonts or pictures from elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "butterfly/base/units.h"
#include "plan/plan.h"

namespace butterfly::app {
namespace {

constexpr double kWidth = 960, kMargin = 24, kInner = kWidth - 2 * kMargin, kRow = 24;
// After Okabe and Ito, whose colours all eyes tell apart; light enough for black letters.
constexpr std::array kColours{"#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#a6a6f0", "#d55e00", "#f0e442"};

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '&') {
      result += "&amp;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += c;
    }
  }
  return result;
}

/// Elements one below the other.
class Drawing {
 public:
  double y = 36;

  void text(double x, double at, const std::string& words, std::string_view more = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, at, more, escaped(words));
  }
  void box(double x, double at, double width, double height, std::string_view fill, const std::string& title = "") {
    body_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>\n", x,
        at, std::max(width, 0.0), height, fill, escaped(title));
  }
  /// A share of a grey field.
  void bar(double x, double at, double width, double share, std::string_view fill) {
    box(x, at, width, 14, "#e8e8e8");
    box(x, at, width * (std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0), 14, fill);
  }
  std::string document() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"white\"/>\n{2}</svg>\n",
        kWidth, std::ceil(y + kMargin), body_);
  }

 private:
  std::string body_;
};

std::string_view colour_of(int node) {
  return kColours[static_cast<std::size_t>(node) % kColours.size()];
}

/// Layers from left to right, slices from top to bottom.
void draw_layers(const Planned& planned, Drawing& drawing) {
  constexpr double kHeight = 88;
  const double per_layer = kInner / planned.config.layers;
  for (const PlannedShare& share : planned.plan.shares) {
    const StageAssignment& work = share.work;
    const int node = share.node;
    const double x = kMargin + per_layer * work.first_layer, width = per_layer * work.layers();
    const double top = drawing.y + kHeight * work.slices.first / kReductionSlices,
                 height = kHeight * work.slices.count() / kReductionSlices;
    const std::string name = planned.cluster.name_of(node);
    drawing.box(x, top, width - 1, height - 1, colour_of(node), name + ": " + planned.layers_of(work));
    constexpr double kLetter = 7.5;
    if (width > kLetter * static_cast<double>(name.size()) + 8 && height >= 11) {
      drawing.text(x + 4, top + std::min(height / 2 + 5, height - 2), name);
    }
  }
  drawing.y += kHeight + 16;
  drawing.text(kMargin, drawing.y, "layer 0", "fill=\"#666\"");
  drawing.text(kWidth - kMargin, drawing.y, fmt::format("layer {}", planned.config.layers - 1),
               "fill=\"#666\" text-anchor=\"end\"");
  drawing.y += 32;
}

void draw_nodes(const Planned& planned, Drawing& drawing) {
  struct Sum {
    double seconds = 0.0;
    std::uint64_t bytes = 0;
  };
  std::map<int, Sum> sums;
  for (const PlannedShare& share : planned.plan.shares) {
    Sum& sum = sums[share.node];
    sum.seconds += share.prediction.decode_s + share.prediction.exchange_s;
    sum.bytes += share.prediction.memory_bytes();
  }
  double slowest = 0.0;
  for (const auto& [node, sum] : sums) slowest = std::max(slowest, sum.seconds);
  constexpr double kTime = 200, kMemory = 560, kBar = 220;
  drawing.text(kTime, drawing.y, "decode step", "fill=\"#666\"");
  drawing.text(kMemory, drawing.y, "memory", "fill=\"#666\"");
  drawing.y += 8;
  for (const auto& [node, sum] : sums) {
    const std::uint64_t memory = planned.cluster.nodes[static_cast<std::size_t>(node)].memory_bytes;
    drawing.text(kMargin, drawing.y + 12, planned.cluster.name_of(node));
    drawing.bar(kTime, drawing.y, kBar, sum.seconds / slowest, colour_of(node));
    drawing.text(kTime + kBar + 8, drawing.y + 12,
                 std::isfinite(sum.seconds) ? format_seconds(sum.seconds) : "unknown");
    if (memory > 0) {
      drawing.bar(kMemory, drawing.y, kBar, static_cast<double>(sum.bytes) / static_cast<double>(memory), "#666");
    }
    drawing.text(kMemory + kBar + 8, drawing.y + 12,
                 fmt::format("{} of {}", format_bytes(sum.bytes), memory > 0 ? format_bytes(memory) : "unknown"));
    drawing.y += kRow;
  }
  drawing.y += 28;
}

void draw_strategies(const Planned& planned, Drawing& drawing) {
  double fastest = 0.0;
  for (const ComparedPlan& one : planned.all) {
    if (one.plan) fastest = std::max(fastest, one.plan->prediction.tokens_per_s);
  }
  drawing.text(kMargin, drawing.y,
               fmt::format("Strategies: predicted tokens/s with {} sequences", planned.options.sequences),
               "font-weight=\"bold\"");
  drawing.y += 12;
  constexpr double kStart = 140, kBar = 360;
  for (const ComparedPlan& one : planned.all) {
    drawing.text(kMargin, drawing.y + 12, one.strategy,
                 one.strategy == planned.plan.strategy ? "font-weight=\"bold\"" : "");
    if (one.plan) {
      const PlanPrediction& p = one.plan->prediction;
      drawing.bar(kStart, drawing.y, kBar, p.tokens_per_s / fastest, "#009e73");
      drawing.text(kStart + kBar + 8, drawing.y + 12,
                   fmt::format("{:.2f} tokens/s, {} per token, first after {}, {} hops", p.tokens_per_s,
                               format_seconds(p.token_s), format_seconds(p.ttft_s), p.hops));
    } else {
      drawing.text(kStart, drawing.y + 12, "does not fit", "fill=\"#a00\"");
    }
    drawing.y += kRow;
  }
}

}  // namespace

std::string Planned::svg() const {
  Drawing drawing;
  const PlanPrediction& p = plan.prediction;
  drawing.text(kMargin, drawing.y,
               fmt::format("{}, {}, {} nodes: strategy {}", config.name, to_string(config.weight_type), cluster.size(),
                           plan.strategy),
               "font-size=\"18\" font-weight=\"bold\"");
  drawing.y += 22;
  drawing.text(
      kMargin, drawing.y,
      fmt::format("predicted: first token {}, {} per token, {:.2f} tokens/s, load_balance_factor {:.3f}, {} hops",
                  format_seconds(p.ttft_s), format_seconds(p.token_s), p.tokens_per_s, p.load_balance_factor, p.hops));
  drawing.y += 20;
  draw_layers(*this, drawing);
  draw_nodes(*this, drawing);
  if (!all.empty()) draw_strategies(*this, drawing);
  return drawing.document();
}

}  // namespace butterfly::app
