#include "butterfly/text/answer/answer_parser.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

struct Taken {
  std::string content;
  std::string reasoning;
  std::string calls;  // "name{arguments}#id " of each
  friend bool operator==(const Taken&, const Taken&) = default;
};

void PrintTo(const Taken& taken, std::ostream* out) {
  *out << "content[" << taken.content << "] reasoning[" << taken.reasoning << "] calls[" << taken.calls << "]";
}

void add(Taken& taken, const std::vector<AnswerEvent>& events) {
  for (const AnswerEvent& event : events) {
    if (event.kind == AnswerEvent::Kind::kContent) taken.content += event.text;
    if (event.kind == AnswerEvent::Kind::kReasoning) taken.reasoning += event.text;
    if (event.kind == AnswerEvent::Kind::kCall) {
      taken.calls += event.call.name + event.call.arguments + "#" + event.call.id + " ";
    }
  }
}

/// The answer in pieces of `size` bytes.
Taken taken(const AnswerOptions& options, std::string_view text, std::size_t size) {
  AnswerParser parser(options);
  Taken result;
  for (std::size_t at = 0; at < text.size(); at += size) add(result, parser.push(text.substr(at, size)));
  add(result, parser.finish());
  return result;
}

struct Recorded {
  const char* family;
  AnswerFormat format;
  const char* text;
  Taken taken;
  bool in_reasoning = false;
  bool tools = true;
};

const Recorded kAnswers[] = {
    {"plain", AnswerFormat::kTags, "  Hello <b>you</b>\n", {"  Hello <b>you</b>\n", "", ""}},
    {"Hermes, Qwen 2.5",
     AnswerFormat::kTags,
     "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"place\": "
     "\"Köln\"}}\n</tool_call>\n<tool_call>\n"
     "{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>",
     {"I look.", "", "get_weather{\"place\":\"Köln\"}#call00000 clock{}#call00001 "}},
    {"Qwen 3",
     AnswerFormat::kTags,
     "<think>\nA clock helps.\n</think>\n\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>",
     {"", "A clock helps.", "clock{}#call00000 "}},
    {"QwQ, whose prompt opens the reasoning",
     AnswerFormat::kTags,
     "Let me see.\n\nYes.\n</think>\n\nIt is 4.",
     {"It is 4.", "Let me see.\n\nYes.", ""},
     true},
    {"Qwen 3 Coder",
     AnswerFormat::kTags,
     "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n[1, "
     "2]\n</parameter>\n<parameter="
     "text>\nif x < 3:\n  y\n</parameter>\n</function>\n</tool_call>",
     {"", "", "write{\"path\":\"a.txt\",\"lines\":[1,2],\"text\":\"if x < 3:\\n  y\"}#call00000 "}},
    {"SmolLM3",
     AnswerFormat::kTags,
     "<think>\n\n</think>\n<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>",
     {"", "", "clock{}#call00000 "}},
    {"Llama 3.1",
     AnswerFormat::kLlama3,
     "{\"name\": \"get_weather\", \"parameters\": {\"place\": \"Köln\"}}",
     {"", "", "get_weather{\"place\":\"Köln\"}#call00000 "}},
    {"Llama 3.1, two",
     AnswerFormat::kLlama3,
     "{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {\"x\": \"}\"}}",
     {"", "", "a{}#call00000 b{\"x\":\"}\"}#call00001 "}},
    {"Llama 3.1, JSON that is no call", AnswerFormat::kLlama3, "{\"answer\": 42}", {"{\"answer\": 42}", "", ""}},
    {"Llama 3.1, text", AnswerFormat::kLlama3, "It is {\"name\": 1}.", {"It is {\"name\": 1}.", "", ""}},
    {"Llama 3.1, code",
     AnswerFormat::kLlama3,
     "<|python_tag|>print(1)\nprint(2)",
     {"", "", "python{\"code\":\"print(1)\\nprint(2)\"}#call00000 "}},
    {"Llama 3.2 behind the tag",
     AnswerFormat::kLlama3,
     "<|python_tag|>{\"type\": \"function\", \"name\": \"clock\", \"parameters\": {}}",
     {"", "", "clock{}#call00000 "}},
    {"Llama 3.1 and functionary 3.1",
     AnswerFormat::kLlama3,
     "<function=get_weather>{\"place\": \"Köln\"}</function>",
     {"", "", "get_weather{\"place\": \"Köln\"}#call00000 "}},
    {"Mistral v3",
     AnswerFormat::kMistral,
     "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"place\": \"Köln\"}, \"id\": \"VvvODy9mT\"}]",
     {"", "", "get_weather{\"place\":\"Köln\"}#VvvODy9mT "}},
    {"Mistral v11",
     AnswerFormat::kMistral,
     "Well.[TOOL_CALLS]a[ARGS]{\"x\": 1}[TOOL_CALLS]b[CALL_ID]abc123DEF[ARGS]{}",
     {"Well.", "", "a{\"x\": 1}#call00000 b{}#abc123DEF "}},
    {"Magistral", AnswerFormat::kMistral, "[THINK]Hm.[/THINK]Four.", {"Four.", "Hm.", ""}},
    {"DeepSeek V3",
     AnswerFormat::kTags,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"place\": \"Köln\"}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>",
     {"", "", "get_weather{\"place\": \"Köln\"}#call00000 clock{}#call00001 "}},
    {"DeepSeek V3.1",
     AnswerFormat::kTags,
     "Sure<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{\"a\": "
     "[1]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     {"Sure", "", "clock{\"a\": [1]}#call00000 "}},
    {"DeepSeek R1", AnswerFormat::kTags, "<think>\nOne.\n\nTwo.\n</think>\n\nThree.", {"Three.", "One.\n\nTwo.", ""}},
    {"Kimi K2",
     AnswerFormat::kTags,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{\"a\": "
     "1}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     {"", "", "clock{\"a\": 1}#functions.clock:0 "}},
    {"gpt-oss",
     AnswerFormat::kHarmony,
     "<|channel|>analysis<|message|>User asks 2+2.<|end|><|start|>assistant<|channel|>final<|message|>It is **4**.",
     {"It is **4**.", "User asks 2+2.", ""}},
    {"gpt-oss, a call",
     AnswerFormat::kHarmony,
     "<|channel|>analysis<|message|>Use it.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
     "<|constrain|>json<|message|>{\"place\":\"Köln\"}<|call|>",
     {"", "Use it.", "get_weather{\"place\":\"Köln\"}#call00000 "}},
    {"gpt-oss, the recipient in the role",
     AnswerFormat::kHarmony,
     "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant to=functions.clock<|channel|>commentary "
     "json"
     "<|message|>{}",
     {"I will look.", "", "clock{}#call00000 "}},
    {"Granite 3",
     AnswerFormat::kTags,
     "<|tool_call|>[{\"name\": \"clock\", \"arguments\": {\"a\": null}}]",
     {"", "", "clock{\"a\":null}#call00000 "}},
    {"Phi-4 mini",
     AnswerFormat::kTags,
     "<|tool_call|>[{\"type\": \"function\", \"function\": {\"name\": \"clock\", \"arguments\": {}}}]<|/tool_call|>",
     {"", "", "clock{}#call00000 "}},
    {"GLM-4",
     AnswerFormat::kGlm4,
     "\nget_weather\n{\"place\": \"Köln\"}",
     {"", "", "get_weather{\"place\": \"Köln\"}#call00000 "}},
    {"GLM-4, text", AnswerFormat::kGlm4, "\nYes\nof course", {"\nYes\nof course", "", ""}},
    {"GLM-4.5",
     AnswerFormat::kTags,
     "\n<think>Hm</think>\n<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>Köln</"
     "arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>2</arg_value>\n</tool_call>",
     {"", "Hm", "get_weather{\"place\":\"Köln\",\"days\":2}#call00000 "}},
    {"Command-R",
     AnswerFormat::kCommandR,
     "Action: ```json\n[\n    {\n        \"tool_name\": \"clock\",\n        \"parameters\": {}\n    }\n]```",
     {"", "", "clock{}#call00000 "}},
    {"Command-R without a tool",
     AnswerFormat::kCommandR,
     "Action: ```json\n[{\"tool_name\": \"directly_answer\", \"parameters\": {}}]```",
     {"", "", ""}},
    {"Command-R7B",
     AnswerFormat::kTags,
     "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
     "\"clock\", "
     "\"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
     {"", "I look.", "clock{\"a\":1}#0 "}},
    {"Command-R7B, text", AnswerFormat::kTags, "<|START_RESPONSE|>Noon.<|END_RESPONSE|>", {"Noon.", "", ""}},
    {"functionary 3.2",
     AnswerFormat::kFunctionary,
     "all\nI look.>>>get_weather\n{\"place\": \"Köln\"}>>>clock\n{}",
     {"I look.", "", "get_weather{\"place\": \"Köln\"}#call00000 clock{}#call00001 "}},
    {"a call that is none",
     AnswerFormat::kTags,
     "<tool_call>{\"name\": }</tool_call> sorry",
     {"<tool_call>{\"name\": }</tool_call> sorry", "", ""}},
    {"a call that does not end",
     AnswerFormat::kTags,
     "<tool_call>\n{\"name\": \"clock\", \"argum",
     {"<tool_call>\n{\"name\": \"clock\", \"argum", "", ""}},
    {"a closing tag, quotes and braces inside an argument",
     AnswerFormat::kTags,
     "<tool_call>{\"name\": \"write\", \"arguments\": {\"text\": \"</tool_call> \\\"}{ </tool_call>\", \"deep\": "
     "{\"a\": [{\"b\": {}}]}}}</tool_call>\n<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>",
     {"", "",
      "write{\"text\":\"</tool_call> \\\"}{ </tool_call>\",\"deep\":{\"a\":[{\"b\":{}}]}}#call00000 "
      "clock{}#call00001 "}},
    {"a string that never ends",
     AnswerFormat::kTags,
     "<tool_call>{\"name\": \"clock</tool_call> and more",
     {"<tool_call>{\"name\": \"clock</tool_call> and more", "", ""}},
    {"Mistral v3, its own tag in an argument, two in one list",
     AnswerFormat::kMistral,
     "[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {\"x\": \"[TOOL_CALLS]\"}}, {\"name\": \"b\", \"arguments\": {}}]",
     {"", "", "a{\"x\":\"[TOOL_CALLS]\"}#call00000 b{}#call00001 "}},
    {"Granite 3, cut",
     AnswerFormat::kTags,
     "<|tool_call|>[{\"name\": \"clock\", \"arguments\": {\"a\": \"x",
     {"<|tool_call|>[{\"name\": \"clock\", \"arguments\": {\"a\": \"x", "", ""}},
    {"Qwen 3, a call and then one that is cut",
     AnswerFormat::kTags,
     "<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"cl",
     {"<tool_call>{\"name\": \"cl", "", "clock{}#call00000 "}},
    {"without tools",
     AnswerFormat::kTags,
     "Write <tool_call>{}</tool_call>.",
     {"Write <tool_call>{}</tool_call>.", "", ""},
     false,
     false},
    {"reasoning only begins an answer",
     AnswerFormat::kTags,
     "The tag <think> opens.",
     {"The tag <think> opens.", "", ""}},
    {"reasoning that does not end", AnswerFormat::kTags, "<think>\nHm, ", {"", "Hm, ", ""}},
};

TEST(AnswerParser, RecordedAnswersAreTakenApartWhereverTheyAreCut) {
  for (const Recorded& answer : kAnswers) {
    const AnswerOptions options{.format = answer.format,
                                .reasoning = answer.in_reasoning ? opened_reasoning("<think>") : nullptr,
                                .tools = answer.tools};
    for (const std::size_t size : {1, 2, 3, 7, 100'000}) {
      EXPECT_EQ(taken(options, answer.text, size), answer.taken) << answer.family << ", pieces of " << size;
    }
  }
}

TEST(AnswerParser, ContentComesAsSoonAsItIsCertain) {
  AnswerParser parser({.format = AnswerFormat::kTags});
  Taken so_far;
  add(so_far, parser.push("Hello <tool"));
  EXPECT_EQ(so_far.content, "Hello");  // the space may stand before a call
  add(so_far, parser.push("box>"));
  EXPECT_EQ(so_far.content, "Hello <toolbox>");
}

TEST(AnswerFormat, TemplatesTellTheFormat) {
  const std::pair<const char*, AnswerFormat> all[] = {
      {"<|im_start|>... <tool_call>", AnswerFormat::kTags},
      {"<|start_header_id|>ipython", AnswerFormat::kLlama3},
      {"[INST] [TOOL_CALLS]", AnswerFormat::kMistral},
      {"<|start|>assistant<|channel|>final<|message|>", AnswerFormat::kHarmony},
      {"<|observation|>", AnswerFormat::kGlm4},
      {"<|observation|> <tool_call>", AnswerFormat::kTags},
      {"'Action: ```json'", AnswerFormat::kCommandR},
      {">>>all", AnswerFormat::kFunctionary},
      {"<|im_start|>", AnswerFormat::kTags},
  };
  for (const auto& [source, format] : all) EXPECT_EQ(find_answer_format(source), format) << source;
}

TEST(AnswerFormat, APromptMayOpenReasoning) {
  ASSERT_NE(opened_reasoning("<|im_start|>assistant\n<think>\n"), nullptr);
  EXPECT_EQ(opened_reasoning("<|im_start|>assistant\n<think>\n")->close, "</think>");
  EXPECT_EQ(opened_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"), nullptr);
}

TEST(AnswerParser, ReasoningThatThePromptOpenedEndsWithItsOwnTag) {
  AnswerParser parser({.reasoning = opened_reasoning("<|START_THINKING|>")});
  auto events = parser.push("I think<|END_THINKING|>Yes.");
  for (AnswerEvent& event : parser.finish()) events.push_back(std::move(event));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "I think");
  EXPECT_EQ(events[1].text, "Yes.");
}

TEST(ToolCalls, NothingThatAModelWritesIsTrusted) {
  EXPECT_FALSE(read_json_calls(std::string(100'000, '[')));
  EXPECT_FALSE(read_json_calls("{\"name\": \"x\""));
  EXPECT_FALSE(read_calls("<function=x"));
  EXPECT_FALSE(named_call("rm -rf /", "{}"));
  EXPECT_EQ(named_call("f", "not json")->arguments, "{\"code\":\"not json\"}");
}

}  // namespace
}  // namespace butterfly
