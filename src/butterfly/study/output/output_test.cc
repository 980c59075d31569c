#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/test_folder_test.h"
#include "butterfly/study/analysis/analysis.h"
#include "butterfly/study/output/form.h"
#include "butterfly/study/output/report_files.h"
#include "butterfly/study/output/report_json.h"
#include "butterfly/study/output/span_files.h"
#include "butterfly/study/read/recording_builder_test.h"

namespace butterfly::study {
namespace {

using trace::Zone;
using Json = nlohmann::json;

/// As much of JSON Schema as docs/formats/study.schema.json uses; the first complaint, empty where there is none.
std::string complaint(const Json& schema, const Json& root, const Json& value, const std::string& where) {
  if (schema.contains("$ref")) {
    const auto name = schema["$ref"].get<std::string>();
    return complaint(root.at(Json::json_pointer(name.substr(1))), root, value, where);
  }
  const auto is = [&value](const std::string& type) {
    return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
           (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
           (type == "integer" && value.is_number_integer()) || (type == "boolean" && value.is_boolean()) ||
           (type == "null" && value.is_null());
  };
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    bool fits = false;
    for (const Json& type : types) fits = fits || is(type.get<std::string>());
    if (!fits) return where + " is " + dump_json(value).substr(0, 40) + ", not " + dump_json(schema["type"]);
  }
  if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end()) {
    return where + " is " + dump_json(value) + ", not one of " + dump_json(schema["enum"]);
  }
  if (value.is_object()) {
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return where + " has no " + name.get<std::string>();
    }
    for (const auto& [name, member] : value.items()) {
      const Json& properties = schema.contains("properties") ? schema["properties"] : Json::object();
      Json inner = schema.value("additionalProperties", Json(true));
      if (properties.contains(name)) inner = properties[name];
      if (inner == Json(false)) return where + " has " + name + ", which the schema does not";
      if (!inner.is_object()) continue;
      if (std::string found = complaint(inner, root, member, where + "." + name); !found.empty()) return found;
    }
  }
  if (value.is_array() && schema.contains("items")) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      std::string found = complaint(schema["items"], root, value[i], fmt::format("{}[{}]", where, i));
      if (!found.empty()) return found;
    }
  }
  return {};
}

RecordedRun example() {
  RecordingBuilder training = good_training();
  training.fact("model.name", "<b>\"tiny\" & co</b>").fact("model.parameters", "1000000").fact("train.seq", "16");
  training.fact("threads", "1").fact("thread.0", "main").fact("host", "<i>host</i>");
  training.span(Zone::kAllReduce, 20'000, 20'400, {.bytes = 100}, 1);
  return run_of({training});
}

struct Made {
  RecordedRun run;
  Study study;
  Advice advice;
};

Made made() {
  Made result{.run = example(), .study = {}, .advice = {}};
  auto study = analyse({result.run}, {});
  EXPECT_TRUE(study);
  result.study = std::move(*study);
  result.study.command = "butterfly train | x, \"y\"";
  result.advice = advise(result.study);
  return result;
}

TEST(StudyOutput, TheReportFollowsItsSchema) {
  const auto text = read_file(std::string(BUTTERFLY_SOURCE_DIR) + "/docs/formats/study.schema.json", kAnySize);
  ASSERT_TRUE(text) << text.error().message;
  const Json schema = parse_json(*text);
  ASSERT_TRUE(schema.is_object());
  const Made all = made();
  Json report = parse_json(report_json(all.study, all.advice));
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(complaint(schema, schema, report, "report"), "");
  ASSERT_FALSE(report["advice"]["causes"].empty());
  report["workloads"][0]["step_s"]["mean"] = "1";
  EXPECT_NE(complaint(schema, schema, report, "report"), "") << "the checker can fail";
  report["workloads"][0]["step_s"].erase("mean");
  EXPECT_NE(complaint(schema, schema, report, "report"), "");
}

TEST(StudyOutput, FlopsFilesHaveTheNamesThatScriptsRead) {
  const Made all = made();
  const Json profile = parse_json(flops_profile_json(all.study));
  EXPECT_NEAR(profile["efficiency_metrics"]["mfu_percent"].get<double>(), 68.0, 0.01);
  EXPECT_EQ(profile["efficiency_metrics"]["device_peak_flops"].get<double>(), 100e9);
  EXPECT_NEAR(profile["performance_metrics"]["flops_per_sec"].get<double>(), 68e9, 1e6);
  EXPECT_TRUE(profile["performance_metrics"].contains("throughput_samples_per_sec"));
  EXPECT_NEAR(profile["flops_analysis"]["flops_per_parameter"].get<double>(), 68.0, 0.01);
  const Json intensity = parse_json(computational_intensity_json(all.study));
  EXPECT_GT(intensity["arithmetic_intensity_flops_per_byte"].get<double>(), 0.0);
  EXPECT_GT(intensity["memory_bandwidth_used_gb_per_sec"].get<double>(), 0.0);
  EXPECT_GT(intensity["memory_bandwidth_utilization_percent"].get<double>(), 0.0);
  EXPECT_EQ(intensity["memory_bound_vs_compute_bound"], "compute_bound");
}

TEST(StudyOutput, TheTraceIsOneThatChromeAndPerfettoRead) {
  const RecordedRun run = example();
  const Json trace = parse_json(trace_events_json(run));
  ASSERT_TRUE(trace.is_object());
  std::size_t complete = 0;
  std::set<std::string> names;
  for (const Json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["ph"].is_string() && event["pid"].is_number_integer() && event["tid"].is_number_integer());
    ASSERT_TRUE(event["name"].is_string() && event["ts"].is_number());
    if (event["ph"] == "X") {
      ++complete;
      ASSERT_GE(event["dur"].get<double>(), 0.0);
      names.insert(event["name"].get<std::string>());
    }
  }
  EXPECT_EQ(complete, run.processes[0].spans.size());
  EXPECT_TRUE(names.contains("gate_up"));
}

TEST(StudyOutput, FoldedStacksAreAllOfTheTime) {
  RecordingBuilder builder;
  builder.span(Zone::kStepTrain, 0, 10).span(Zone::kPhaseForward, 1, 9).span(Zone::kQkv, 2, 5);
  EXPECT_EQ(folded_stacks(run_of({builder})),
            "train;train_step 2000\ntrain;train_step;forward 5000\ntrain;train_step;forward;qkv 3000\n");
}

TEST(StudyOutput, TheCsvHasARowForEachOperationAndAsManyCellsAsItsHead) {
  const Made all = made();
  const std::string csv = operators_csv(all.study);
  std::size_t rows = 0;
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line); ++rows) EXPECT_EQ(std::ranges::count(line, ','), 17) << line;
  EXPECT_EQ(rows, 1 + all.study.workloads[0].operators.size());
}

TEST(StudyOutput, ThePageNeedsNothingFromElsewhereAndShowsNamesAsText) {
  const Made all = made();
  const std::string page = html_page(make_report(all.study, all.advice));
  for (const char* outside : {"http://", "https://", "<script", "<link", "<img", "url(", "@import"}) {
    std::string without = page;
    const std::string name_space = "http://www.w3.org/2000/svg";
    for (std::size_t at = 0; (at = without.find(name_space)) != std::string::npos;)
      without.erase(at, name_space.size());
    EXPECT_EQ(without.find(outside), std::string::npos) << outside;
  }
  EXPECT_EQ(page.find("<b>\"tiny\""), std::string::npos);
  EXPECT_EQ(page.find("<i>"), std::string::npos) << "in the cell of a table";
  EXPECT_NE(page.find("&lt;b&gt;"), std::string::npos);
  for (const char* part :
       {"Roofline", "width=device-width", "prefers-color-scheme:dark", "@media print", "idle_cpus"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

TEST(StudyOutput, WhateverARecordingSaysAReportOfItIsWhole) {
  const std::string good = trace::to_bytes(good_training(6).build());
  std::mt19937 random(11);
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    for (int n = 0; n < 3; ++n) {
      // Spans and samples are at the end; what is before them is refused as a whole.
      const std::size_t at = bytes.size() / 3 + random() % (bytes.size() - bytes.size() / 3);
      bytes[at] = static_cast<char>(random());
    }
    auto recording = trace::parse_recording(as_bytes(bytes));
    if (!recording) continue;
    const RecordedRun run = align({std::move(*recording)}, {"x"});
    const auto study = analyse({run}, {.warmup = 0});
    if (!study) continue;
    ++read;
    const Advice advice = advise(*study);
    const Json report = parse_json(report_json(*study, advice));
    ASSERT_TRUE(report.is_object());
    ASSERT_TRUE(parse_json(trace_events_json(run)).is_object());
    const std::string page = html_page(make_report(*study, advice));
    ASSERT_EQ(page.find("nan"), std::string::npos);
    ASSERT_EQ(page.find("inf\""), std::string::npos);
  }
  EXPECT_GT(read, 1000);
}

TEST(StudyOutput, TheTerminalKeepsToItsColumnsAndMarkdownToItsTables) {
  const Made all = made();
  const Report report = make_report(all.study, all.advice);
  std::istringstream terminal(terminal_text(report, 120));
  for (std::string line; std::getline(terminal, line);) EXPECT_LE(line.size(), 130u) << line;
  std::istringstream markdown(markdown_text(report));
  std::ptrdiff_t cells = 0;
  for (std::string line; std::getline(markdown, line);) {
    if (!line.starts_with("|")) {
      cells = 0;
      continue;
    }
    std::ptrdiff_t here = 0;
    for (std::size_t i = 0; i < line.size(); ++i) here += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
    EXPECT_TRUE(cells == 0 || here == cells) << line;
    cells = here;
  }
}

TEST(StudyOutput, EveryFileIsWrittenAndAFolderThatCannotBeIsNamed) {
  const TestFolder folder;
  const Made all = made();
  const Report report = make_report(all.study, all.advice);
  ASSERT_TRUE(write_report(folder / "new/one", report, all.study, all.advice, all.run));
  for (const char* name :
       {"performance_summary_report.md", "report.html", "report.json", "operators.csv", "trace.json", "folded.txt",
        "flops_analysis/flops_profile.json", "flops_analysis/computational_intensity.json"}) {
    EXPECT_GT(std::filesystem::file_size(folder / (std::string("new/one/") + name)), 100u) << name;
  }
  std::ofstream(folder / "file") << "x";
  const Status refused = write_report(folder / "file/in", report, all.study, all.advice, all.run);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("file/in"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace butterfly::study
