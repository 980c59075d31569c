#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/json.h"
#include "butterfly/serve/protocol/answer_writer.h"

namespace butterfly {
namespace {

using testing::HasSubstr;

ApiJson parsed(const std::string& text) {
  ApiJson json;
  EXPECT_FALSE(parse_body(text, json)) << text;
  return json;
}

ApiError chat_error(const std::string& text) {
  GenerationBody body;
  return read_chat_body(parsed(text), body).value_or(ApiError{.status = 0});
}

TEST(ParseBody, DepthCountsBracketsButNotThoseInStrings) {
  EXPECT_TRUE(is_nested_within("[[1]]", 2));
  EXPECT_FALSE(is_nested_within("[[[1]]]", 2));
  EXPECT_TRUE(is_nested_within(R"(["[[[[\"[[["])", 1));
  ApiJson json;
  const auto error = parse_body(std::string(1 << 20, '['), json);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("deeper than 64"));
}

TEST(ParseBody, InvalidUtf8IsNamedByItsByte) {
  ApiJson json;
  const auto error = parse_body("{\"a\":\"\xff\"}", json);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("byte 6"));
}

TEST(ChatBody, TheFirstMistakeIsNamedWithItsField) {
  const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
  EXPECT_EQ(chat_error("{" + messages + "}").status, 0);
  EXPECT_EQ(chat_error("{" + messages + R"(,"user":"x","store":true})").status, 0);
  EXPECT_EQ(chat_error("{" + messages + R"(,"temperature":"a"})").param, "temperature");
  EXPECT_EQ(chat_error("{" + messages + R"(,"seed":1.5})").param, "seed");
  EXPECT_EQ(chat_error("{" + messages + R"(,"n":1e300})").param, "n");
  EXPECT_THAT(chat_error("{" + messages + R"(,"max_token":5})").message, HasSubstr("did you mean max_tokens?"));
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":7}]})").param,
            "messages[1].content");
}

TEST(ChatBody, PartsAndCallsBecomeWhatTemplatesWant) {
  GenerationBody body;
  const auto error = read_chat_body(parsed(R"({"messages":[
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"1","content":"2"}]})"),
                                    body);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(body.messages[0]["content"], "a\nb");
  EXPECT_EQ(body.messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(body.messages[2]["name"], "f");
}

TEST(ResponseBody, ItemsOfFunctionsBecomeMessages) {
  GenerationBody body;
  const auto error = read_response_body(parsed(R"({"instructions":"s","input":[{"role":"user","content":"a"},
    {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
    {"type":"function_call_output","call_id":"c","output":"ok"}]})"),
                                        body);
  ASSERT_FALSE(error) << error->message;
  ASSERT_EQ(body.messages.size(), 4u);
  EXPECT_EQ(body.messages[0]["role"], "system");
  EXPECT_EQ(body.messages[2]["tool_calls"][0]["id"], "c");
  EXPECT_EQ(body.messages[3]["name"], "f");
  EXPECT_TRUE(read_response_body(parsed(R"({"input":[{"type":"function_call","name":7}]})"), body));
  const auto no_calls = read_response_body(parsed(R"({"input":[{"role":"user","content":"a","tool_calls":-5},
    {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]})"),
                                           body);
  ASSERT_TRUE(no_calls);
  EXPECT_TRUE(no_calls->param.starts_with("input[0].tool_calls")) << no_calls->param;
}

std::string joined(AnswerWriter& writer) {
  std::string all;
  for (const std::string& event : writer.take_events()) all += event;
  return all;
}

TEST(ChatWriter, ReasoningAndCallsAreApartFromContent) {
  AnswerSettings settings{.id = "chatcmpl-1", .stream = false};
  settings.parser.reasoning = opened_reasoning("<think>");
  const auto writer = make_chat_writer(settings);
  for (const std::string text :
       {"I think", "</think>", "Yes.", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}", "</tool_call>"}) {
    writer->piece(0, {.text = text});
  }
  writer->end(0, FinishReason::kEndToken);
  const ApiJson whole = writer->whole({.prompt_tokens = 3, .generated_tokens = 5});
  const ApiJson& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "I think");
  EXPECT_EQ(message["content"], "Yes.");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["usage"]["total_tokens"], 8);
}

TEST(ChatWriter, CallsThatMayNotBeParallelAreOne) {
  AnswerSettings settings{.id = "chatcmpl-1", .parallel_tool_calls = false};
  const auto writer = make_chat_writer(settings);
  for (int i = 0; i < 2; ++i) writer->piece(0, {.text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"});
  writer->end(0, FinishReason::kEndToken);
  EXPECT_EQ(writer->whole({})["choices"][0]["message"]["tool_calls"].size(), 1u);
}

std::string calls_of(const ToolChoice& choice, std::string_view text, std::size_t piece) {
  ForcedCalls calls(choice);
  std::string told;
  const auto tell = [&told](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      told += event.kind == AnswerEvent::Kind::kCall ? "|" + event.call.name + "(" + event.call.arguments : event.text;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += piece) tell(calls.push(text.substr(at, piece)));
  tell(calls.finish());
  return told;
}

TEST(ForcedCalls, ArgumentsComeAsTheyAreWrittenWhereverTheTextIsCut) {
  const ToolChoice any{.kind = ToolChoice::Kind::kRequired};
  const ToolChoice named{.kind = ToolChoice::Kind::kNamed, .name = "f"};
  const std::string list = R"( [ {"name":"a", "arguments" : {"x": "}],\\\"{", "arguments": [1, {"name": "z"}]} },
    {"name":"b\u0041","arguments":{}},{"name":"c","arguments": 7 }] )";
  for (std::size_t piece = 1; piece < 40; ++piece) {
    EXPECT_EQ(calls_of(any, list, piece), R"(|a({"x": "}],\\\"{", "arguments": [1, {"name": "z"}]}|bA({}|c(7)")
        << piece;
    EXPECT_EQ(calls_of(named, "\n {\"x\": 1}", piece), "|f({\"x\": 1}") << piece;
  }
  EXPECT_EQ(calls_of(any, R"([{"name":"a","arguments":{"x)", 3), R"(|a({"x)")
      << "what was cut is told as far as it goes";
  EXPECT_EQ(calls_of(any, R"([{"na)", 3), R"([{"na)");
  EXPECT_EQ(calls_of(named, "", 1), "|f(");
}

TEST(ChatBody, APriorityIsWithinItsBounds) {
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}],"priority":)";
  GenerationBody body;
  EXPECT_FALSE(read_chat_body(parsed(messages + "-7}"), body));
  EXPECT_EQ(body.priority, -7);
  EXPECT_EQ(chat_error(messages + "101}").param, "priority");
  EXPECT_EQ(chat_error(messages + "\"high\"}").param, "priority");
}

TEST(AnswerWriter, TheSamePiecesMakeTheSameBytesWhateverWasCached) {
  std::string streams[2];
  for (int i = 0; i < 2; ++i) {
    AnswerSettings settings{.id = "cmpl-1", .created = 5, .model = "m", .stream = true, .include_usage = true};
    const auto writer = make_completion_writer(settings);
    writer->piece(0, {.text = "a"});
    writer->piece(0, {.text = ""});
    writer->end(0, FinishReason::kLength);
    writer->finish({.prompt_tokens = 9, .generated_tokens = 2, .cached_tokens = static_cast<std::size_t>(i)});
    streams[i] = joined(*writer);
  }
  EXPECT_EQ(streams[0], streams[1]);
  EXPECT_THAT(streams[0], HasSubstr("data: [DONE]\n\n"));
}

TEST(CompletionWriter, OffsetsCountCharactersOfPromptAndText) {
  AnswerSettings settings{.id = "cmpl-1", .logprobs = true};
  const auto writer = make_completion_writer(settings);
  AnswerPiece first{.text = "", .shown = {.token = "<s>"}};
  first.has_logprob = false;
  writer->prompt(0, "éa",
                 {first,
                  {.text = "é", .shown = {.token = "é", .logprob = -1}},
                  {.text = "a", .shown = {.token = "a", .logprob = -2}}});
  writer->piece(0, {.text = "b", .shown = {.token = "b", .logprob = -3}});
  writer->end(0, FinishReason::kLength);
  const ApiJson choice = writer->whole({})["choices"][0];
  EXPECT_EQ(choice["text"], "éab");
  EXPECT_EQ(choice["logprobs"]["text_offset"], ApiJson::array({0, 0, 1, 2}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], ApiJson::array({nullptr, -1.0, -2.0, -3.0}));
}

}  // namespace
}  // namespace butterfly
