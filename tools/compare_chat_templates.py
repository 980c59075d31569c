#!/usr/bin/env python3
"""Compares what this project's template engine and transformers make of the published chat templates of many families.

    pip install transformers==5.23.0 jinja2==3.1.6
    tools/compare_chat_templates.py [--butterfly BINARY] [FOLDER or FILE.jinja...]

Without a folder, the source distribution of llama-cpp-python is fetched from PyPI for the templates that it carries
(each under the licence of its model; none of them is part of this repository). Exit status 1: a text differs, or one of
the two refuses what the other takes.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import chat_conversations
from transformers_chat import render

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "llama-cpp-python==0.3.36"


def published(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "-d",
                    folder, PACKAGE], check=True)
    archive = next(pathlib.Path(folder).glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers()
                   if "/models/templates/" in member.name and member.name.endswith(".jinja")]
        for member in members:
            yield pathlib.Path(member.name).name, tar.extractfile(member).read().decode("utf-8")


def sources(paths, folder):
    if not paths:
        yield from published(folder)
    for path in paths:
        files = sorted(path.rglob("*.jinja")) if path.is_dir() else [path]
        for file in files:
            yield file.name, file.read_text(encoding="utf-8")


def ours(binary, template, conversation):
    run = subprocess.run([binary, "chat", "--chat-template", template, "--render", conversation], capture_output=True,
                         check=False)
    if run.returncode != 0:
        return None, run.stderr.decode("utf-8", "replace").strip()
    return run.stdout.decode("utf-8"), None


def difference(one, other):
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return f"at {at}: {one[max(0, at - 30):at + 50]!r}, not {other[max(0, at - 30):at + 50]!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", default=str(ROOT / "build/release/bin/butterfly"))
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    counts = {"equal": 0, "refused by both": 0, "different": 0}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        conversations = {}
        for name, value in chat_conversations.inputs():
            path = pathlib.Path(folder) / f"{name}.json"
            path.write_text(json.dumps(value), encoding="utf-8")
            conversations[name] = (str(path), value)
        templates = 0
        for template_name, source in sources(options.paths, folder):
            templates += 1
            own = dict.fromkeys(counts, 0)
            path = pathlib.Path(folder) / "template.jinja"
            path.write_text(source, encoding="utf-8")
            results = pool.map(lambda item: ours(options.butterfly, str(path), item[0]), conversations.values())
            for (name, (_, value)), (text, error) in zip(conversations.items(), results):
                wanted, refusal = render(source, value, chat_conversations.NOW)
                if text is None and wanted is None:
                    counts["refused by both"] += 1
                    own["refused by both"] += 1
                elif text == wanted:
                    counts["equal"] += 1
                    own["equal"] += 1
                else:
                    counts["different"] += 1
                    own["different"] += 1
                    both = text is not None and wanted is not None
                    print(f"{template_name}, {name}: " +
                          (difference(text, wanted) if both else f"ours: {error or 'a text'}, transformers: {refusal or 'a text'}"))
            print(f"{template_name}: " + ", ".join(f"{count} {what}" for what, count in own.items() if count), flush=True)
    print(f"{templates} templates, {len(conversations)} conversations: " +
          ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
