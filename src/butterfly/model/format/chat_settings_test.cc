#include "butterfly/model/format/chat_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "butterfly/base/test_folder_test.h"
#include "butterfly/model/format/gguf/gguf_writer.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

class ChatSettingsOf : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  TestFolder folder_;
};

TEST_F(ChatSettingsOf, AGgufFileAreItsKeys) {
  const std::string path = folder_ / "model.gguf";
  auto writer = GgufWriter::create(path);
  ASSERT_TRUE(writer);
  writer->add_string("tokenizer.chat_template", "plain");
  writer->add_string("tokenizer.chat_template.tool_use", "tools");
  writer->add_strings("tokenizer.ggml.tokens", {"<s>", "</s>"});
  writer->add_integer("tokenizer.ggml.bos_token_id", 0);
  writer->add_integer("tokenizer.ggml.eos_token_id", 1);
  writer->add_integer("tokenizer.ggml.padding_token_id", 99);
  writer->add_float("general.sampling.temp", 0.7f);
  writer->add_integer("general.sampling.top_k", 40);
  ASSERT_TRUE(writer->write_header());
  ASSERT_TRUE(writer->finish());
  const auto settings = read_chat_settings(path);
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->find("")->source, "plain");
  EXPECT_EQ(settings->find("tool_use")->source, "tools");
  EXPECT_EQ(settings->find("none of them"), nullptr);
  EXPECT_THAT(settings->special_tokens,
              ::testing::ElementsAre(std::pair("bos_token", "<s>"), std::pair("eos_token", "</s>")));
  EXPECT_FLOAT_EQ(*settings->temperature, 0.7f);
  EXPECT_EQ(*settings->top_k, 40);
  EXPECT_FALSE(settings->top_p);
}

TEST_F(ChatSettingsOf, ADirectoryAreThoseOfTheFirstFileThatHasThem) {
  write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "extra_special_tokens": {"image_token": "<i>"},
      "chat_template": [{"name": "default", "template": "in the list"}, {"name": "rag", "template": "for documents"}]})");
  write("chat_template.json", R"({"chat_template": "of the processor"})");
  auto settings = read_chat_settings(folder_.path());
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->find("")->source, "in the list");
  EXPECT_EQ(settings->find("rag")->source, "for documents");
  EXPECT_EQ(settings->special_tokens.size(), 3u);
  write("chat_template.jinja", "of its own file");
  write("additional_chat_templates/tool_use.jinja", "for tools");
  settings = read_chat_settings(folder_.path());
  EXPECT_EQ(settings->find("")->source, "of its own file");
  EXPECT_EQ(settings->find("")->origin, "chat_template.jinja");
  EXPECT_EQ(settings->find("tool_use")->source, "for tools");
}

TEST_F(ChatSettingsOf, SamplingIsThatOfTransformers) {
  write("generation_config.json", R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]})");
  auto settings = read_chat_settings(folder_.path());
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_FLOAT_EQ(*settings->temperature, 0.6f);
  EXPECT_FLOAT_EQ(*settings->top_p, 0.9f);
  write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_EQ(*read_chat_settings(folder_.path())->temperature, 0.0f);
  write("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(*read_chat_settings(folder_.path())->temperature, 1.0f);
  write("generation_config.json", R"({"temperature": "hot"})");
  EXPECT_THAT(read_chat_settings(folder_.path()).error().message,
              HasSubstr("temperature is string, expected a number"));
}

TEST_F(ChatSettingsOf, FilesThatSayNothingGiveNothing) {
  const auto settings = read_chat_settings(folder_.path());
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->find(""), nullptr);
  EXPECT_TRUE(settings->sampling_origin.empty());
  write("tokenizer_config.json", "[");
  EXPECT_THAT(read_chat_settings(folder_.path()).error().message,
              HasSubstr("tokenizer_config.json: is not a JSON object"));
}

}  // namespace
}  // namespace butterfly
