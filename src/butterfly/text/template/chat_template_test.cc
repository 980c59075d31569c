#include "butterfly/text/template/chat_template.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "butterfly/text/template/encode_chat.h"

namespace butterfly {
namespace {

using Json = nlohmann::ordered_json;

ChatInput input_of(const char* messages) {
  ChatInput input;
  input.messages = parse_ordered_json(messages);
  return input;
}

std::string rendered(const std::string& source, const ChatInput& input = {}) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) return "parse error: " + parsed.error().message;
  const auto text = parsed->render(input);
  return text ? text->bytes : "error: " + text.error().message;
}

struct Expected {
  const char* source;
  const char* text;
};

TEST(ChatTemplate, ExpressionsMeanWhatTheyMeanInJinja) {
  const Expected all[] = {
      {"{{ 1 + 2 * 3 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }}", "19 3 -4 2 3.5 0.5"},
      {"{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x'] }}", "a1NoneTrue1.0[1, 'x']"},
      {"{{ 1 < 2 < 3 }} {{ 3 > 2 == 2 }} {{ 'b' in 'abc' }} {{ 2 not in [1] }}", "True True True True"},
      {"{{ 'yes' if x is defined else 'no' }}|{{ x if false }}", "no|"},
      {"{{ [1,2,3,4][1:3] }} {{ 'héllo'[::-1] }} {{ 'héllo'[-2:] }} {{ [1,2][5] is defined }}",
       "[2, 3] olléh lo False"},
      {"{{ {'a': 1, 'b': [true, none]} }} {{ (1,) }} {{ () }}", "{'a': 1, 'b': [True, None]} (1,) ()"},
      {"{{ \"it's\" | list | length }} {{ [\"it's\"] }} {{ ['\\n\\x00é'] }}", "4 [\"it's\"] ['\\n\\x00é']"},
      {"{{ 1e16 }} {{ 1.5e-5 }} {{ 0.1 + 0.2 }} {{ 100000000000000.0 }}",
       "1e+16 1.5e-05 0.30000000000000004 100000000000000.0"},
      {"{{ 'A\\u00e9\\t\\q\\101' }}", "Aé\t\\qA"},
      {"{{ not true or true and false }} {{ 1 and 'x' }} {{ '' or 'y' }}", "False x y"},
      {"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a-b-c'.rsplit('-', 1) }}",
       "['a', 'b', '', 'c'] ['a', 'b'] ['a-b', 'c']"},
      {"{{ 'xxaxx'.strip('x') }} {{ 'abc'.startswith(('z', 'a')) }} {{ 'aaa'.replace('a', 'b', 2) }} {{ "
       "'ab'.replace('', '-') }}",
       "a True bba -a-b-"},
      {"{{ 'hello wORLD'.title() }} {{ 'straße'|upper }} {{ 'x'.join(['a', 'b']) }} {{ '{}-{n}'.format(1, n=2) }}",
       "Hello World STRASSE axb 1-2"},
      {"{{ '%s is %d or %05.2f%%' % ('x', 3, 1.5) }}", "x is 3 or 01.50%"},
      {"{% set d = {'get': 1, 'x': 2} %}{{ d.get('x') }} {{ d['get'] }} {{ d.items() | list }}",
       "2 1 [('get', 1), ('x', 2)]"},
      {"{{ undefined_thing }}|{{ undefined_thing | length }}|{{ undefined_thing is none }}", "|0|False"},
  };
  for (const Expected& each : all) EXPECT_EQ(rendered(each.source), each.text) << each.source;
}

TEST(ChatTemplate, StatementsScopeAsInJinja) {
  const Expected all[] = {
      {"{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "1231"},
      {"{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "4"},
      {"{% for i in [1,2,3,4] if i % 2 == 0 %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else "
       "%}none{% endfor %}",
       "1/2,2/2"},
      {"{% for i in [] %}{% else %}none{% endfor %}", "none"},
      {"{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
       "02"},
      {"{% macro m(a, b='z') %}<{{ a }}{{ b }}{{ caller() if caller }}>{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}"
       "{% call m(4) %}in{% endcall %}",
       "<1z><32><4zin>"},
      {"{% set t %}a{{ 1 }}{% endset %}{% set u | upper %}b{% endset %}{{ t ~ u }}{% filter upper %}c{% endfilter %}",
       "a1BC"},
      {"{% raw %}{{ x }}{% endraw %}{# no #}{% generation %}g{% endgeneration %}", "{{ x }}g"},
      {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
      {"{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"},
      {"{% for x in 'ab' %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }} {% endfor %}", "ab ab "},
      {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
  };
  for (const Expected& each : all) EXPECT_EQ(rendered(each.source), each.text) << each.source;
}

TEST(ChatTemplate, WhiteSpaceIsTrimmedAsTransformersAsksFor) {
  const Expected all[] = {
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a  {%- if true -%}  b  {%- endif -%}  c", "abc"},
      {"a\n  {%+ if true +%}\nb{% endif %}", "a\n  \nb"},
      {"x {# c #}\n y\n  {# c #}\nz", "x  y\nz"},
      {"  {{ 1 }}\n  {{- 2 }}\n", "  12"},
      {"a\r\nb\rc", "a\nb\nc"},
      {"{{ {'a': {'b': 1}}['a']['b'] }}", "1"},
  };
  for (const Expected& each : all) EXPECT_EQ(rendered(each.source), each.text) << each.source;
}

TEST(ChatTemplate, FiltersAndTestsMeanWhatTheyMeanInJinja) {
  const Expected all[] = {
      {"{{ {'b': 'é\"\\n', 'a': [1.0, none]} | tojson }}", "{\"b\": \"é\\\"\\n\", \"a\": [1.0, null]}"},
      {"{{ {'b': 1, 'a': {}} | tojson(indent=2, sort_keys=true) }}", "{\n  \"a\": {},\n  \"b\": 1\n}"},
      {"{{ 'é' | tojson(ensure_ascii=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}", "\"\\u00e9\" [1,2]"},
      {"{{ [3, 1, 2] | sort | join('-') }} {{ ['b', 'A'] | sort }} {{ [1, 2, 2] | unique | list }}",
       "1-2-3 ['A', 'b'] [1, 2]"},
      {"{{ [{'r': 'x', 'n': 1}, {'r': 'y', 'n': 2}] | selectattr('r', 'equalto', 'y') | map(attribute='n') | list }}",
       "[2]"},
      {"{{ ['a', ''] | select | list }} {{ [1, 2] | reject('odd') | list }} {{ ['a'] | map('upper') | first }}",
       "['a'] [2] A"},
      {"{{ 'a\\n\\nb' | indent(2) }}|{{ 'a\\nb' | indent(1, true) }}", "a\n\n  b| a\n b"},
      {"{{ x | default('d') }} {{ '' | default('d', true) }} {{ '12' | int + 1 }} {{ 'x' | int(5) }} {{ 2.5 | round }}",
       "d d 13 5 2.0"},
      {"{{ {'b': 2, 'A': 1} | dictsort }} {{ 'hello world' | title | capitalize }}",
       "[('A', 1), ('b', 2)] Hello world"},
      {"{{ 1 is number }} {{ true is integer }} {{ 'x' is string }} {{ {} is mapping }} {{ 'x' is sequence }} {{ 3 is "
       "in [3] }}",
       "True False True True True True"},
      {"{{ ('<b>' | safe) + '<i>' }}", "<b>&lt;i&gt;"},
      {"{% for k, g in [{'t': 2, 'n': 'x'}, {'t': 1, 'n': 'y'}] | groupby('t') %}{{ k }}{{ g[0].n }}{% endfor %}",
       "1y2x"},
  };
  for (const Expected& each : all) EXPECT_EQ(rendered(each.source), each.text) << each.source;
}

TEST(ChatTemplate, ErrorsNameLineAndExpression) {
  EXPECT_EQ(rendered("a\n{{ x.y }}"), "error: chat template, line 2: 'x' is undefined (in 'x.y')");
  EXPECT_EQ(
      rendered("{% for m in messages %}\n\n{{ raise_exception('no ' ~ 1) }}{% endfor %}",
               input_of(R"([{"role": "user"}])")),
      "error: chat template, line 3: the template refuses the conversation: no 1 (in 'raise_exception('no ' ~ 1)')");
  EXPECT_EQ(rendered("\n{% if %}"),
            "parse error: chat template, line 2: expected an expression, found the end of the tag");
  EXPECT_EQ(rendered("{{ 1 + }}"),
            "parse error: chat template, line 1: expected an expression, found the end of the expression");
  EXPECT_EQ(rendered("{% include 'x' %}"),
            "parse error: chat template, line 1: the tag 'include' is not supported: chat templates stand alone");
  EXPECT_EQ(rendered("{{ 'a' + 1 }}"),
            "error: chat template, line 1: unsupported operand types for +: 'str' and 'int' (in ''a' + 1')");
}

TEST(ChatTemplate, NothingLeadsOutOfTheSandbox) {
  EXPECT_EQ(rendered("{{ ''.__class__ }}"), "");
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ {}.update({}) }}", "{{ [].__class__() }}",
        "{{ messages['__class__'].x }}", "{{ (''|attr('__class__')).x }}", "{{ range.__globals__.x }}"}) {
    EXPECT_NE(rendered(source).find("not safe in a template"), std::string::npos) << source << rendered(source);
  }
  EXPECT_NE(rendered("{{ namespace(__init__=1) }}").find("must not begin with '_'"), std::string::npos);
}

/// Each would run for hours, or take all memory.
const char* const kHostile[] = {
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n < 30 %}{{ m(n + 1) }}{{ m(n + 1) }}{% endif %}{% endmacro %}{{ m(0) }}",
    "{{ 'x' * 999999999 }}",
    "{{ 'x' * 9999999999999999999 }}",
    "{{ [0] * 999999999 }}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{{ range(99999999) }}",
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=['x']) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=['x']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
    "tojson }}",
    "{% set ns = namespace(x=['x']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x "
    "+ [] }}",
    "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "{% set a = 'a' * 100000 %}{% for i in range(99999) %}{{ (a ~ 'b') in a }}{% endfor %}",
    "{{ ('a' * 1000000).split('') }}",
    "{{ ('a' * 3000000).rsplit('b' ~ 'a' * 1000000) }}",
    "{% set s = 'ab' * 1000000 %}{% for i in range(99999) %}{{ s.replace('a', 'cc') }}{% endfor %}",
    "{{ 'x'.ljust(99999999999) }}",
    "{{ '%99999999999s' % 'x' * 99999 }}",
    "{{ 'x' | indent(99999999999) }}",
    "{{ 'x' | center(99999999999) }}",
    "{{ range(99999) | map('string') | join(',' * 9999) }}",
    "{% set ns = namespace() %}{% for i in range(99999) %}{% set ns.x = namespace(y=ns.x) %}{% endfor %}{% for j in "
    "range(99999) %}{% for k in range(999) %}{% endfor %}{% endfor %}",
    "{{ range(99999) | map('tojson') | map('list') | sum(start=[]) }}",
    "{% for i in range(99999) %}{{ range(99999) | sort(reverse=true) | unique | list | length }}{% endfor %}",
    "{{ strftime_now('%999999999d') }}",
};

TEST(ChatTemplate, HostileTemplatesEndInASentenceWithinTheirMemory) {
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  for (const char* source : kHostile) {
    const std::string result = rendered(source);
    EXPECT_TRUE(result.starts_with("error: ") || result.starts_with("parse error: ")) << source << result.substr(0, 80);
  }
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024) << "KiB";
#endif
  const std::string deep = "{{ " + std::string(20'000, '(') + "1" + std::string(20'000, ')') + " }}";
  EXPECT_NE(rendered(deep).find("nested more than"), std::string::npos);
  EXPECT_NE(rendered("{{ " + std::string(100'000, '+') + "1 }}").find("more than"), std::string::npos);
  std::string sums = "{{ 1";
  for (int i = 0; i < 20'000; ++i) sums += "+1";
  EXPECT_NE(rendered(sums + " }}").find("nested more than"), std::string::npos);
  std::string blocks;
  for (int i = 0; i < 10'000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(rendered(blocks).find("nested more than"), std::string::npos);
}

TEST(ChatTemplate, LoopsThatCallThemselvesHaveTheLimitsOfAll) {
  EXPECT_NE(rendered("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}").find("deep"), std::string::npos);
  EXPECT_NE(rendered("{% for x in [1] %}{{ loop([1]) }}{% endfor %}").find("not marked as 'recursive'"),
            std::string::npos);
  const char* kept =
      "{% set n = namespace() %}{% for x in [1] recursive %}{% set n.l = loop %}{% endfor %}{{ n.l([2]) }}";
  EXPECT_NE(rendered(kept).find("the loop is over"), std::string::npos);
}

TEST(ChatTemplate, WhatCannotBeUnpackedIsNamed) {
  EXPECT_NE(rendered("{{ range(*3) }}").find("int"), std::string::npos);
  EXPECT_NE(rendered("{{ dict(**[1]) }}").find("'**' unpacks a dict, not 'list'"), std::string::npos);
  EXPECT_NE(rendered("{{ dict(a=1, **{'a': 2}) }}").find("'a' is given twice"), std::string::npos);
  EXPECT_NE(rendered("{{ dict(**{1: 2}) }}").find("unpacks names, not 'int'"), std::string::npos);
  EXPECT_NE(rendered("{{ range(*[1], 2) }}").find("without a name follows"), std::string::npos);
  EXPECT_NE(rendered("{{ [1]|batch(0) }}").find("at least 1"), std::string::npos);
  EXPECT_NE(rendered("{{ [1]|random }}").find("filter 'random' is not supported"), std::string::npos);
}

TEST(ChatTemplate, LongConversationsAreWithinTheLimits) {
  ChatInput input;
  for (int i = 0; i < 5000; ++i)
    input.messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(400, 'x')}});
  const std::string source =
      "{% for m in messages %}{% if m.role == 'user' %}{% set c = m.content.split('</think>')[-1] | trim %}{% else "
      "%}{% set c = "
      "m.content | trim %}{% endif %}{{ '<|' + m.role + '|>' + c.lstrip('\\n') }}{% endfor %}";
  EXPECT_EQ(rendered(source, input).size(), 5000u * 400 + 2500u * (8 + 13));
}

TEST(ChatTemplate, MarksTellTheTemplateFromMessages) {
  const auto parsed =
      ChatTemplate::parse("<{{ messages[0].role }}>{{ messages[0].content | upper | trim }}{{ bos_token }}");
  ASSERT_TRUE(parsed);
  ChatInput input = input_of(R"([{"role": "user", "content": " a<s> "}])");
  input.special_tokens = {{"bos_token", "<s>"}};
  const auto text = parsed->render(input);
  ASSERT_TRUE(text);
  EXPECT_EQ(text->bytes, "<user>A<S><s>");
  std::string marks;
  for (std::size_t i = 0; i < text->size(); ++i) marks += text->mark(i) == 0 ? 't' : 'm';
  EXPECT_EQ(marks, "ttttttmmmmttt");
}

/// Letters and three tokens: <s> and <x> steer, <u> is for everybody.
Tokenizer letters() {
  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  for (const char* piece : {"<s>", "<x>", "<u>", "<w>"}) vocabulary.pieces.emplace_back(piece);
  vocabulary.types = {TokenType::kControl, TokenType::kControl, TokenType::kUserDefined, TokenType::kUserDefined};
  for (const char c : std::string("<>suxwab")) {
    vocabulary.pieces.emplace_back(1, c);
    vocabulary.types.push_back(TokenType::kNormal);
  }
  return *Tokenizer::create(std::move(vocabulary));
}

TEST(EncodeChat, TokensThatSteerCountOnlyWhereTheTemplateWroteThem) {
  const Tokenizer tokenizer = letters();
  const auto parsed = ChatTemplate::parse("<s>{{ messages[0].content }}<w>{{ messages[0].content }}<x>");
  ASSERT_TRUE(parsed);
  const auto pieces = [&](const char* content) {
    ChatInput input;
    input.messages = Json::array({Json{{"role", "user"}, {"content", content}}});
    std::string text;
    const auto ids = encode_chat(tokenizer, *parsed, *parsed->render(input));
    for (const TokenId token : ids.value()) {
      text += tokenizer.vocabulary().pieces[static_cast<std::size_t>(token.value)] + " ";
    }
    return text;
  };
  EXPECT_EQ(pieces("a"), "<s> a <w> a <x> ");
  EXPECT_EQ(pieces("<x>"), "<s> < x > <w> < x > <x> ");
  EXPECT_EQ(pieces("<u>"), "<s> <u> <w> <u> <x> ");
  EXPECT_EQ(pieces("<w>"), "<s> < w > <w> < w > <x> ");
}

TEST(EncodeChat, TokensThatAMessageAndTheTemplateSpellTogetherAreText) {
  const Tokenizer tokenizer = letters();
  const auto parsed = ChatTemplate::parse("<{{ messages[0].content }}>");
  ChatInput input = input_of(R"([{"role": "user", "content": "s"}])");
  const auto ids = encode_chat(tokenizer, *parsed, *parsed->render(input));
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->size(), 3u);
}

}  // namespace
}  // namespace butterfly
