#!/usr/bin/env python3
"""Writes tests/golden/chat_templates.json: what transformers' apply_chat_template() makes of conversations with this
project's own templates (chat_templates.py), for tests/golden/chat_golden_test.cc.

    pip install transformers==5.23.0 jinja2==3.1.6
    tools/make_chat_golden.py
"""

import json
import os
import pathlib
import time

import chat_conversations
import chat_templates
from transformers_chat import render

WANTED = ("system+prompt", "turns", "empty+prompt", "unicode+prompt", "hostile+prompt", "tools+prompt", "tool_turns",
          "text_arguments+prompt", "documents+prompt", "parts", "thinking+prompt")


def main():
    os.environ["TZ"] = "UTC"  # as the test has it
    time.tzset()
    inputs = {name: value for name, value in chat_conversations.inputs() if name in WANTED}
    for value in inputs.values():
        value.pop("now")
    texts = {}
    for template_name, source in chat_templates.TEMPLATES.items():
        texts[template_name] = {}
        for name, value in inputs.items():
            text, error = render(source, value, chat_conversations.NOW)
            texts[template_name][name] = {"error": error} if text is None else text
    target = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/chat_templates.json"
    golden = {"now": chat_conversations.NOW, "templates": chat_templates.TEMPLATES, "inputs": inputs, "texts": texts}
    target.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    count = sum(len(each) for each in texts.values())
    print(f"{target}: {count} texts of {len(texts)} templates, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
