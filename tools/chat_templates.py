"""Chat templates for the golden tests, written for this project after what each family documents about its prompt.
They are not the published ones: tools/compare_chat_templates.py compares those. Each exercises other parts of Jinja."""

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content ~ '\\n\\n' }}
    {%- endif %}
    {{- 'Functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{ tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

PLAIN_CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
                "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

LLAMA2 = """{% if messages and messages[0]['role'] == 'system' %}
{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}
{% set rest = messages %}{% set system = false %}
{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant') }}
{% endif %}
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] if loop.index0 == 0 and system else message['content'] %}
{% if message['role'] == 'user' %}
{{- bos_token + '[INST] ' + content.strip() + ' [/INST]' -}}
{% elif message['role'] == 'assistant' %}
{{- ' ' + content.strip() + ' ' + eos_token -}}
{% endif %}
{% endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- set system = '' %}
{%- if messages | length > 0 and messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Today Date: ' + date_string + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("One call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson(indent=4) + '}' + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """{%- set turns = messages | rejectattr('role', 'equalto', 'system') | list %}
{%- set system = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('') %}
{{- bos_token }}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and loop.last %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- '{' }}
                {%- for key, value in tool.function.items() if key != 'return' %}
                    {{- '"' + key + '": ' + value | tojson }}{{ ', ' if not loop.last }}
                {%- endfor %}
                {{- '}' ~ (', ' if not loop.last else ']') }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + (system + '\\n\\n' if loop.last and system else '') + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have 9 characters') }}{%- endif %}
            {{- call.function | tojson | string | truncate(1000) | replace('}', '') ~ ', "id": "' ~ call.id ~ '"}' }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- set prefix = (messages[0]['content'] if messages[0]['content'] is string else messages[0]['content'][0]['text']) + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}{%- set prefix = '' -%}{%- set turns = messages -%}{%- endif -%}
{%- for message in turns -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

PHI = ("{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
       "{{ '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|><|end|>' }}{% else %}"
       "{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' }}{% endif %}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}")

PHI3 = ("{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + "
        "'<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == "
        "'assistant' %}{{'<|assistant|>\\n' ~ message['content'] ~ '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}")

HARMONY = """{%- macro type_of(schema) -%}
    {%- if schema.enum is defined -%}"{{ schema.enum | join('" | "') }}"
    {%- elif schema.type == 'array' -%}{{ type_of(schema['items']) }}[]
    {%- elif schema.type is iterable and schema.type is not string -%}{{ schema.type | join(' | ') }}
    {%- elif schema.type in ['number', 'integer'] -%}number
    {%- else -%}{{ schema.type }}{%- endif -%}
{%- endmacro -%}
{%- macro function_of(function) %}
{{- '// ' + function.description + '\\ntype ' + function.name + ' = (' }}
{%- for name, schema in (function.parameters.properties or {}).items() %}
    {{- ('_: {\\n' if loop.first else '') + name + ('?' if name not in function.parameters.required | default([]) else '') + ': ' }}
    {{- type_of(schema) }}
    {%- if schema.default is defined %}{{- ', // default: ' ~ schema.default }}{%- endif %}
    {{- ',\\n' + ('}' if loop.last else '') }}
{%- endfor %}
{{- ') => any;\\n\\n' }}
{%- endmacro %}
{{- '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') + '\\nReasoning: ' }}
{{- (reasoning_effort if reasoning_effort is defined else 'medium') + '<|end|>' }}
{%- set developer = messages[0].content if messages and messages[0].role in ('developer', 'system') else '' %}
{%- if developer or tools %}
    {{- '<|start|>developer<|message|>' + developer }}
    {%- if tools %}{{- '\\n\\nnamespace functions {\\n\\n' }}{%- for tool in tools %}{{ function_of(tool.function) }}{%- endfor %}{{- '}' }}{%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in messages if message.role not in ('developer', 'system') %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {%- if message.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{%- endif %}
        {{- '<|start|>assistant to=functions.' ~ message.tool_calls[0].function.name }}
        {{- '<|channel|>commentary json<|message|>' ~ message.tool_calls[0].function.arguments | tojson ~ '<|call|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + ('<|return|>' if loop.last and not add_generation_prompt else '<|end|>') }}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions.' + message.name + ' to=assistant<|channel|>commentary<|message|>' + message.content | tojson + '<|end|>' }}
    {%- else %}
        {{- '<|start|>user<|message|>' ~ message.content ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{%- endif %}
"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(first=true, tool=false, system='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system = message['content'] %}{%- endif %}{%- endfor %}
{{ bos_token }}{{ ns.system }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.tool = false %}{{ '<｜User｜>' ~ message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
{%- for tool in message['tool_calls'] %}
{{- '<｜Assistant｜><｜tool▁calls▁begin｜>' if loop.first else '\\n' }}
{{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n' ~ tool['function']['arguments'] ~ '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message['role'] == 'assistant' %}
{%- set content = message['content'].split('</think>')[-1] %}
{{- ('<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>') + content + '<｜end▁of▁sentence｜>' }}{%- set ns.tool = false %}
{%- elif message['role'] == 'tool' %}{%- set ns.tool = true %}{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}
{%- endfor -%}
{% if add_generation_prompt and not ns.tool %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""

GRANITE = """{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message %}Knowledge Cutoff Date: April 2024.
Today's Date: {{ strftime_now('%B %d, %Y') }}.
{%- endset %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' + (tools | tojson(indent=4)) + '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents %}
    {{- '<|start_of_role|>documents<|end_of_role|>' }}
    {%- for document in documents %}{{- 'Document ' + loop.index | string + '\\n' + document['text'] }}{%- if not loop.last %}{{- '\\n\\n' }}{%- endif %}{%- endfor %}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' ~ message['content'] ~ '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
{%- endfor %}
"""

GLM = """[gMASK]<sop>
{%- if tools -%}<|system|>
Tools:
{%- for tool in tools -%}{%- set function = tool.function if tool.get('function') else tool %}

## {{ function.name }}

{{ function | tojson(ensure_ascii=False, indent=4) }}
{%- endfor -%}{%- endif -%}
{%- macro visible(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{ item.text }}{%- elif item is string -%}{{ item }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{ content if content is not none }}{%- endif -%}
{%- endmacro -%}
{%- for m in messages %}
{%- if m.role == 'user' %}<|user|>
{{ visible(m.content) }}
{%- elif m.role == 'assistant' -%}<|assistant|>
{{ visible(m.content).strip() }}
{%- for call in m.tool_calls or [] %}
{{ '\\n<tool_call>' + call.function.name }}
{% set arguments = call.function.arguments %}{% if arguments is mapping %}{% for k, v in arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson if v is not string else v }}</arg_value>
{% endfor %}{% endif %}</tool_call>
{%- endfor %}
{%- elif m.role == 'tool' -%}<|observation|>{{ '\\n' ~ m.content }}
{%- else -%}<|{{ m.role }}|>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}
"""

COMMAND_R = """{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{%- else %}{% set loop_messages = messages %}{% set system_message = 'You are Command-R.' %}{% endif %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}
{%- for message in loop_messages %}
{%- set content = message['content'] or '' %}
{%- if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- endfor %}
{%- if documents %}{% for d in documents | sort(attribute='title', reverse=true) %}
Document: {{ loop.index0 }}
{% for key, value in d.items() | rejectattr(0, 'equalto', 'doc_id') %}{{ key }}: {{ value | trim }}
{% endfor %}{% endfor %}{% endif %}
{%- if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' ~ message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + (message['content'] or '') + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

OLMO = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>
' + message['content'] + '
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' ~ message['content'] + '
' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>
'  ~ message['content'] + eos_token + '
' }}{% else %}{{ '<|assistant|>
'  ~ message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}{% endfor %}"""

FALCON = ("{%- if tools %}{{- '<|system|>\\nFunctions:\\n' }}{%- for tool in tools %}{{- tool.function | dictsort | tojson }}\\n"
          "{%- endfor %}{%- endif %}{% for message in messages %}{{ '<|' + message.role | lower + '|>\\n' + (message.content or '') | trim + '\\n' }}"
          "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}")

STARCHAT = ("{%- for message in messages -%}{%- if loop.first and message.role != 'system' -%}<|system|>\\n<|end|>\\n{%- endif -%}"
            "{{ '<|' ~ message.role ~ '|>\\n%s<|end|>\\n' % (message.content or '') }}{%- endfor -%}"
            "{%- generation -%}{{ '<|assistant|>' if add_generation_prompt }}{%- endgeneration -%}")

SMOLLM = """{%- if messages and messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are a helpful AI assistant<|im_end|>\\n' }}{% endif %}
{%- set modes = {'/no_think': false, '/think': true} %}
{%- set ns = namespace(think=enable_thinking | default(true)) %}
{%- for mode, value in modes.items() %}{% if messages and messages[0].content is string and mode in messages[0].content %}{% set ns.think = value %}{% endif %}{% endfor %}
{{- '## Metadata\\n' ~ ('Reasoning: ' ~ ('/think' if ns.think else '/no_think')) ~ '\\n' }}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ content.replace('/no_think', '').replace('/think', '').rstrip() ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' ~ ('' if ns.think else '<think>\\n\\n</think>\\n') }}{% endif %}"""

# Of no family: parts of Jinja that templates may use some day.
RECURSION = """{%- macro props(p) -%}{%- for k, v in p|dictsort recursive -%}
{{ loop.depth }}/{{ loop.depth0 }}/{{ loop.index }} {{ k }}{% if v is mapping %}({{ loop(v|dictsort) }}){% else %}={{ v }}{% endif %};
{%- endfor -%}{%- endmacro -%}
{{ props({'a': {'b': 1, 'c': {'d': [1,2]}}, 'e': 'x'}) }}
{% for m in messages recursive %}{{ m.role }}{% if m.content is string and loop.depth < 3 %}[{{ loop([{'role': 'q', 'content': 'z'}]) }}]{% endif %}{% else %}none{% endfor %}
{% for x in [1,[2,[3]]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}{% endif %}{% endfor %}"""

UNPACKED = """{%- macro f(a, b=2) -%}{{ a }}|{{ b }}|{{ varargs }}|{{ kwargs }}|{{ varargs|length }};{%- endmacro -%}
{%- macro g(x, y=5) -%}{{ x }}-{{ y }};{%- endmacro -%}
{{ f(1) }}{{ f(1, 3, 4, 5, k=6) }}{{ f(*[1, 2, 3], **{'z': 1, 'y': [2]}) }}{{ g(*[1], **{'y': 2}) }}{{ g(3, *[4]) }}{{ g(x=1, **{'y': 7}) }}
{%- macro w() %}{% for v in varargs %}{{ caller(*v) }},{% endfor %}{% endmacro %}
{% call(a, b='q') w([1,2], [3]) %}{{ a }}{{ b }}{% endcall %}
{{ "%s and %s"|format(*['p', 'q']) }} {{ dict(**{'a': 1, 'b': messages|length}) }} {{ namespace(**{'n': 4}).n }} {{ range(*[1, 4])|list }}
{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3,4,5]|batch(2, 'x')|list }} {{ [1,2,3,4,5]|slice(3)|list }} {{ [1,2,3,4,5]|slice(3, 0)|list }} {{ []|slice(2)|list }} {{ []|batch(2)|list }}
{{ 'a b/ü?&=%~_.-'|urlencode }} {{ {'a b': 'ü/', 'c': 1}|urlencode }} {{ [('x', 'y z')]|urlencode }}
{{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1000|filesizeformat }} {{ 123456789|filesizeformat }} {{ 1024|filesizeformat(true) }} {{ 3000000000|filesizeformat(binary=true) }} {{ '12.7'|filesizeformat }}
{{ messages|map(attribute='role')|batch(2)|map('join', '+')|join(',') }}"""

TEMPLATES = {"chatml_tools": CHATML, "chatml": PLAIN_CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA,
             "phi4": PHI, "phi3": PHI3, "harmony": HARMONY, "deepseek": DEEPSEEK, "granite": GRANITE, "glm": GLM,
             "command_r": COMMAND_R, "zephyr": ZEPHYR, "olmo": OLMO, "falcon": FALCON, "starchat": STARCHAT, "smollm": SMOLLM,
             "recursion": RECURSION, "unpacked": UNPACKED}
