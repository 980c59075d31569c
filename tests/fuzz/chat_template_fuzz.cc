// Any bytes as a chat template: refused with a sentence, or a text that is valid UTF-8 and whose marks fit it, in
// bounded time and memory.
#include "butterfly/text/template/chat_template.h"
#include "butterfly/text/utf8.h"
#include "seeds.h"

namespace {

constexpr const char* kSeeds[] = {
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim }}{% if not loop.last %}\n{% endif %}{% endfor "
    "%}",
    "{%- macro f(x, y='z') -%}{{ x ~ y }}{{ caller() if caller }}{%- endmacro -%}{{ f(1) }}{% call f(2) %}b{% endcall "
    "%}",
    "{% set ns = namespace(a=[1]) %}{% for i in range(9) if i is odd %}{% set ns.a = ns.a + [i] %}{% continue %}{% "
    "endfor %}{{ ns.a | tojson(indent=2) }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') | upper | "
    "replace('A', 'b') }}",
    "{% set x %}a{% endset %}{% filter indent(2) %}{{ x[::-1] }}{% endfilter %}{{ {'a': (1, 2.5, none)} }}{{ "
    "'%05.1f|%s' % (1.5, x) }}",
    "{{ 'a,b'.split(',') }}{{ tools | tojson | length }}{% raw %}{{{% endraw %}{# c #}{{ strftime_now('%Y') }}{{ "
    "joiner()() }}",
    "{% if tools is defined and tools is not none %}{% for t in tools %}{% for k, v in t.function.items() | sort %}{{ "
    "k }}{{ v }}{% endfor %}{% endfor %}{% elif 1 < 2 < 3 %}{{ 2 ** 10 // 3 % 7 }}{% endif %}",
};

void require(bool condition) {
  if (!condition) __builtin_trap();
}

const butterfly::ChatInput& input() {
  static const butterfly::ChatInput made = [] {
    butterfly::ChatInput given;
    given.messages = butterfly::parse_ordered_json(
        R"([{"role": "system", "content": "Be \u00e9 brief."}, {"role": "user", "content": "a<s>\n b"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}])");
    given.tools =
        butterfly::parse_ordered_json(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])");
    given.special_tokens = {{"bos_token", "<s>"}};
    given.now = 1'700'000'000;
    return given;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  butterfly::fuzz::write_seeds(*argc, *argv, kSeeds);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = butterfly::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!parsed) {
    require(!parsed.error().message.empty());
    return 0;
  }
  const auto text = parsed->render(input());
  if (!text) {
    require(!text.error().message.empty());
    return 0;
  }
  require(text->marks.empty() || text->marks.size() == text->bytes.size());
  require(!butterfly::find_invalid_utf8(text->bytes));
  return 0;
}
