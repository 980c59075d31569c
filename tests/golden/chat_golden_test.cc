// Texts that transformers makes of conversations (tools/make_chat_golden.py).
#include <gtest/gtest.h>

#include "butterfly/text/template/chat_template.h"
#include "golden_data.h"

namespace butterfly {
namespace {

TEST(GoldenChat, TemplatesMakeTheTextsOfTransformers) {
  // The texts have a date in them, that of noon in London.
  ASSERT_EQ(setenv("TZ", "UTC", 1), 0);
  const auto golden = parse_ordered_json(golden::read_file(golden::committed("chat_templates.json")));
  ASSERT_TRUE(golden.is_object());
  int texts = 0;
  for (const auto& [template_name, source] : golden["templates"].items()) {
    const auto parsed = ChatTemplate::parse(source.get<std::string>());
    ASSERT_TRUE(parsed) << template_name << ": " << parsed.error().message;
    for (const auto& [name, input] : golden["inputs"].items()) {
      ChatInput given;
      given.messages = input["messages"];
      if (input.contains("tools")) given.tools = input["tools"];
      if (input.contains("documents")) given.documents = input["documents"];
      if (input.contains("variables")) given.variables = input["variables"];
      for (const auto& [token, text] : input["special"].items()) given.special_tokens.emplace_back(token, text);
      given.add_generation_prompt = input["add_generation_prompt"].get<bool>();
      given.now = golden["now"].get<std::time_t>();
      const auto text = parsed->render(given);
      const auto& wanted = golden["texts"][template_name][name];
      if (wanted.is_object()) {
        EXPECT_FALSE(text) << template_name << ", " << name << " is refused by transformers: " << wanted["error"];
        continue;
      }
      ASSERT_TRUE(text) << template_name << ", " << name << ": " << text.error().message;
      EXPECT_EQ(text->bytes, wanted.get<std::string>()) << template_name << ", " << name;
      ++texts;
    }
  }
  EXPECT_GT(texts, 100);
}

}  // namespace
}  // namespace butterfly
