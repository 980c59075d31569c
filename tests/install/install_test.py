#!/usr/bin/env python3
"""A user's view of the library: install it, build examples/generate against the installed copy, run it.

    tests/install/install_test.py --build DIR --source DIR --cmake CMAKE --cxx COMPILER --example BINARY

The example built in the tree and the one built against the prefix must print the same text, with one node and with two;
every installed header must compile alone; no installed header may be missing or too many.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

PROMPT = "The king"
HEADERS = {"base/result.h", "generator.h", "load_balancer.h", "model.h", "node.h", "node_registry.h", "partition.h",
           "trainer.h", "version.h"}


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=240,
                          **options)
    if done.returncode != 0:
        sys.exit(f"install: status {done.returncode} from {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_headers(prefix, cxx, work):
    include = prefix / "include"
    found = {path.relative_to(include / "butterfly").as_posix() for path in (include / "butterfly").rglob("*.h")}
    if found != HEADERS:
        sys.exit(f"install: the headers are {sorted(found)}, expected {sorted(HEADERS)}")
    for header in sorted(found):
        source = work / "alone.cc"
        source.write_text(f"#include <butterfly/{header}>\n#include <butterfly/{header}>\n", encoding="utf-8")
        run(cxx, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", include, source)


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "source", "cmake", "cxx", "example"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prefix, consumer = work / "prefix", work / "consumer"
        run(args.cmake, "--install", args.build, "--prefix", prefix)
        check_headers(prefix, args.cxx, work)
        run(args.cmake, "-G", "Ninja", "-S", args.source / "examples/generate", "-B", consumer, f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={args.cxx}", "-DCMAKE_BUILD_TYPE=Release")
        run(args.cmake, "--build", consumer)
        model = args.source / "models/demo.gguf"
        texts = {run(program, model, PROMPT, nodes)
                 for program in (args.example, consumer / "example_generate") for nodes in (1, 2)}
        if len(texts) != 1 or not texts.pop().strip():
            sys.exit("install: the example in the tree and the installed one, on 1 and 2 nodes, print different texts")
        if (prefix / "bin/butterfly").exists():
            run(prefix / "bin/butterfly", "--help")
    print(f"install: {len(HEADERS)} headers alone, one text from 2 programs on 1 and 2 nodes")


if __name__ == "__main__":
    main()
