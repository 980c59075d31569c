// Any bytes as a recording: refused with a message, or a study of it is made and written in every form.
#include "butterfly/study/analysis/analysis.h"
#include "butterfly/study/output/form.h"
#include "butterfly/study/output/report_json.h"
#include "butterfly/study/output/span_files.h"
#include "seeds.h"

namespace butterfly {
namespace {

std::string small_recording() {
  trace::Recording recording{.facts = {{"role", "train"}, {"peak.fp32_gflops", "100"}, {"peak.memory_gb_per_s", "10"}},
                             .begin_ns = 0,
                             .end_ns = 4000};
  for (std::uint64_t i = 0; i < 4; ++i) {
    recording.spans.push_back({.begin_ns = 1000 * i, .end_ns = 1000 * i + 900, .zone = trace::Zone::kStepTrain});
    recording.spans.push_back({.begin_ns = 1000 * i,
                               .end_ns = 1000 * i + 500,
                               .work = {.flops = 100, .bytes = 10, .type = 0},
                               .zone = trace::Zone::kQkv});
    recording.samples.push_back({.at_ns = 1000 * i, .resident_bytes = 1 << 20});
  }
  return to_bytes(recording);
}

}  // namespace
}  // namespace butterfly

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace butterfly;
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (!folder.empty()) fuzz::write_seed(folder, "recording", small_recording());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  auto recording = trace::parse_recording(ByteSpan(reinterpret_cast<const std::byte*>(data), size));
  if (!recording) {
    if (recording.error().message.empty()) std::abort();
    return 0;
  }
  const study::RecordedRun run = study::align({std::move(*recording)}, {"input"});
  const auto found = study::analyse({run}, {.warmup = 1});
  if (!found) return 0;
  const study::Advice advice = study::advise(*found);
  const study::Report report = study::make_report(*found, advice);
  const std::size_t written = study::html_page(report).size() + study::markdown_text(report).size() +
                              study::terminal_text(report).size() + study::report_json(*found, advice).size() +
                              study::trace_events_json(run).size() + study::folded_stacks(run).size();
  if (written == 0) std::abort();
  return 0;
}
