// Random schemas and documents, against the verdicts of the package jsonschema (tools/compare_json_schemas.py); and
// texts written under them, token by token, with the smallest limits.
#include <gtest/gtest.h>

#include "butterfly/base/json.h"
#include "butterfly/infer/request/sampler.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "butterfly/text/grammar/json_schema.h"
#include "butterfly/text/grammar/state_table.h"
#include "golden_data.h"

namespace butterfly {
namespace {

bool is_accepted(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  StateTable table(grammar);
  StateTable::State state = table.start();
  for (const char c : text) state = table.next(state, static_cast<unsigned char>(c));
  return table.accepts(state);
}

const nlohmann::ordered_json& schemas() {
  static const auto golden = parse_ordered_json(golden::read_file(golden::committed("json_schemas.json")));
  return golden["cases"];
}

TEST(JsonSchemaGolden, ValidDocumentsAreAcceptedAndInvalidOnesAreNot) {
  int valid = 0;
  int invalid = 0;
  for (const auto& made : schemas()) {
    const auto grammar = compile_json_schema(made["schema"]);
    ASSERT_TRUE(grammar) << grammar.error().message;
    for (const auto& text : made["valid"]) {
      EXPECT_TRUE(is_accepted(*grammar, text.get<std::string>())) << text << " by " << made["schema"];
      ++valid;
    }
    for (const auto& text : made["invalid"]) {
      EXPECT_FALSE(is_accepted(*grammar, text.get<std::string>())) << text << " by " << made["schema"];
      ++invalid;
    }
  }
  EXPECT_GT(valid, 100);
  EXPECT_GT(invalid, 50);
}

TEST(JsonSchemaGolden, WhatIsSampledIsWholeWithinAnyLimit) {
  auto vocabulary = open_vocabulary(BUTTERFLY_SOURCE_DIR "/models/demo.gguf");
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  const auto tokenizer = Tokenizer::create(std::move(*vocabulary));
  ASSERT_TRUE(tokenizer);
  const auto trie = TokenTrie::create(*tokenizer);
  std::uint64_t seed = 0;
  for (const auto& made : schemas()) {
    const auto grammar = *compile_json_schema(made["schema"]);
    const auto automaton = std::make_shared<TokenAutomaton>(grammar, trie);
    auto first = GrammarMatcher::create(automaton, {.tokens_max = 10'000});
    ASSERT_TRUE(first);
    const int needed = static_cast<int>(first->tokens_needed());
    for (const int limit : {needed, needed + 1, needed + 40}) {
      auto matcher = GrammarMatcher::create(automaton, {.tokens_max = limit, .end_tokens = trie->end_tokens()});
      ASSERT_TRUE(matcher) << matcher.error().message;
      Sampler sampler({.temperature = 1.0f, .seed = ++seed}, {.matcher = *matcher});
      std::string text;
      for (int i = 0; i < limit && !sampler.complete(); ++i) {
        // Logits of no meaning, and the end unlikely.
        std::vector<float> logits(static_cast<std::size_t>(trie->vocab()));
        for (std::size_t id = 0; id < logits.size(); ++id) {
          logits[id] = 3.0f * uniform_at(seed, static_cast<std::uint64_t>(i), id);
        }
        for (const TokenId end : trie->end_tokens()) logits[static_cast<std::size_t>(end.value)] = -6;
        const auto sampled = sampler.sample(logits);
        ASSERT_TRUE(sampled) << sampled.error().message;
        if (tokenizer->is_end(sampled->token)) break;
        ASSERT_TRUE(sampler.accept(sampled->token));
        text += trie->bytes(sampled->token);
      }
      EXPECT_TRUE(is_accepted(grammar, text)) << text << " by " << made["schema"];
      EXPECT_FALSE(parse_json(text).is_discarded()) << text;
    }
  }
}

}  // namespace
}  // namespace butterfly
