// What grammars say of texts, which texts sampling writes under them, and what their masks cost. A program for scripts
// that know from elsewhere what is valid: tools/compare_json_schemas.py. Each line of stdin is a JSON object
//   {"kind": "json_schema", "source": "...", "texts": ["..."], "tokens": [40], "seed": 1}
// and each line of stdout its answer
//   {"accepts": [true], "needed": 12, "written": ["..."], "whole": [true]}  or  {"error": "..."}
// where `written` has a text for each limit in "tokens", sampled from random logits.
//   grammar_check VOCABULARY [--time]
#include <time.h>

#include <iostream>
#include <random>

#include "butterfly/base/json.h"
#include "butterfly/infer/request/sampler.h"
#include "butterfly/model/format/vocabulary_file.h"
#include "butterfly/text/grammar/constraint.h"

namespace butterfly {
namespace {

using Json = nlohmann::ordered_json;

struct Times {
  double total_s = 0;
  double worst_s = 0;
  int count = 0;
};

/// Of this thread, whatever else the machine does.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Constraint::Kind kind_of_name(const std::string& name) {
  if (name == "json_object") return Constraint::Kind::kJsonObject;
  if (name == "json_schema") return Constraint::Kind::kJsonSchema;
  return name == "regex" ? Constraint::Kind::kRegex : Constraint::Kind::kGbnf;
}

/// A text of at most `tokens` tokens, each drawn from logits that have nothing to do with it.
Result<Json> write(const Tokenizer& tokenizer, const std::shared_ptr<TokenAutomaton>& automaton, int tokens,
                   std::uint64_t seed, Times& times) {
  BF_ASSIGN_OR_RETURN(auto matcher, GrammarMatcher::create(automaton, {.tokens_max = tokens,
                                                                       .first_in_text = false,
                                                                       .end_tokens = automaton->trie().end_tokens()}));
  Sampler sampler({.temperature = 1.0f, .seed = seed}, {.matcher = matcher});
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<std::size_t>(tokenizer.vocabulary().size()));
  StreamingDetokenizer stream(tokenizer, {.first_in_text = false});
  std::string text;
  for (int i = 0; i < tokens && !sampler.complete(); ++i) {
    // The end is hardly ever likely, so that the limit is reached.
    for (float& logit : logits) logit = normal(random);
    for (const TokenId end : automaton->trie().end_tokens()) logits[static_cast<std::size_t>(end.value)] -= 6.0f;
    const double begin = cpu_seconds();
    (void)matcher.mask();
    const double seconds = cpu_seconds() - begin;
    times.total_s += seconds;
    times.worst_s = std::max(times.worst_s, seconds);
    ++times.count;
    BF_ASSIGN_OR_RETURN(const SampledToken sampled, sampler.sample(logits));
    if (tokenizer.is_end(sampled.token)) break;
    BF_TRY(sampler.accept(sampled.token));
    BF_TRY(matcher.accept(sampled.token));
    text += stream.push(sampled.token);
  }
  return Json{{"text", text + stream.finish()}, {"whole", matcher.accepts()}};
}

Result<Json> answer(const Json& question, const Tokenizer& tokenizer, const std::shared_ptr<const TokenTrie>& trie,
                    Times& times) {
  BF_ASSIGN_OR_RETURN(const auto grammar, compile({.kind = kind_of_name(question.value("kind", "json_schema")),
                                                   .source = question.value("source", "")}));
  Json result = Json::object();
  StateTable table(grammar);
  for (const Json& text : question.value("texts", Json::array())) {
    StateTable::State state = table.start();
    for (const char c : text.get<std::string>()) state = table.next(state, static_cast<unsigned char>(c));
    result["accepts"].push_back(table.accepts(state));
  }
  if (!question.contains("tokens")) return result;
  const auto automaton = std::make_shared<TokenAutomaton>(grammar, trie);
  BF_ASSIGN_OR_RETURN(auto matcher, GrammarMatcher::create(automaton, {.tokens_max = 1 << 30}));
  const auto needed = static_cast<int>(matcher.tokens_needed());
  result["needed"] = needed;
  auto seed = question.value("seed", std::uint64_t{0});
  for (const Json& tokens : question["tokens"]) {
    // Not above zero: as much more than the least.
    const int limit = tokens.get<int>() > 0 ? tokens.get<int>() : needed - tokens.get<int>();
    BF_ASSIGN_OR_RETURN(const Json written, write(tokenizer, automaton, std::max(limit, needed), seed++, times));
    result["written"].push_back(written["text"]);
    result["whole"].push_back(written["whole"]);
  }
  return result;
}

int run(const std::string& path, bool time) {
  auto vocabulary = open_vocabulary(path);
  if (!vocabulary) {
    std::cerr << vocabulary.error().message << "\n";
    return 2;
  }
  const auto tokenizer = Tokenizer::create(std::move(*vocabulary));
  if (!tokenizer) {
    std::cerr << tokenizer.error().message << "\n";
    return 2;
  }
  const auto trie = TokenTrie::create(*tokenizer);
  Times times;
  for (std::string line; std::getline(std::cin, line);) {
    const Json question = parse_ordered_json(line);
    auto result = question.is_object() ? answer(question, *tokenizer, trie, times)
                                       : make_error(ErrorCode::kBadData, "the line is no JSON object");
    std::cout << dump_json(result ? *result : Json{{"error", result.error().message}}) << std::endl;
  }
  if (time) {
    std::cerr << fmt::format("{} tokens of vocabulary, {} nodes: {} masks, {:.1f} us each, {:.0f} us the worst\n",
                             trie->vocab(), trie->nodes().size(), times.count, times.total_s / times.count * 1e6,
                             times.worst_s * 1e6);
  }
  return 0;
}

}  // namespace
}  // namespace butterfly

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "grammar_check VOCABULARY [--time]\n";
    return 2;
  }
  return butterfly::run(argv[1], argc > 2 && std::string(argv[2]) == "--time");
}
