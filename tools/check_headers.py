#!/usr/bin/env python3
"""Compiles every header alone: whether each includes what it uses.

    tools/check_headers.py [--build DIR] [--compiler C++] [--jobs N] [HEADER...]

Without names it takes all headers of src, include and apps. Each is the only line of a file that is checked
(-fsyntax-only) without a precompiled header, with the folders and definitions of the build's compile_commands.json
(default: the first of build/* that has one), which must have generated its files. Names those that do not compile, with
the compiler's first error, and exits with 1 where there are any.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include", "apps")
# Files of one instruction set include these, and vector types come from there.
INSTRUCTION_SETS = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"]


def headers_of(root):
    """All headers of the project, sorted."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.h"))


def first_build(root):
    """The build folder to take flags from, or None."""
    return next((path.parent for path in sorted((root / "build").glob("*/compile_commands.json"))), None)


def flags_of(build):
    """The compiler of the build, and every include folder and definition that some file of it is compiled with."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    compiler, flags = None, []
    for entry in commands:
        words = shlex.split(entry["command"])
        while os.path.basename(words[0]) == "ccache":
            words = words[1:]
        compiler = compiler or words[0]
        taken = []
        for i, word in enumerate(words):
            if word == "-isystem":
                taken.append(("-isystem", words[i + 1]))
            elif word.startswith("-I") or word.startswith("-D"):
                taken.append((word,))
        flags += [flag for flag in taken if flag not in flags]
    return compiler, [word for flag in flags for word in flag]


def command_of(header, compiler, flags):
    """The compiler call that checks one header, which it reads as `#include` from standard input."""
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    isa = INSTRUCTION_SETS if on_x86 and header.name.endswith("_inl.h") else []
    return [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", *isa, *flags,
            "-fsyntax-only", "-x", "c++", "-"]


def error_of(header, compiler, flags):
    """The compiler's first complaint, or None where the header compiles alone."""
    done = subprocess.run(command_of(header, compiler, flags), input=f'#include "{header}"\n', text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode == 0:
        return None
    lines = done.stderr.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, help="build folder with compile_commands.json")
    parser.add_argument("--compiler", help="instead of the build's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once")
    parser.add_argument("headers", nargs="*", type=pathlib.Path, help="only these")
    args = parser.parse_args()
    build = args.build or first_build(ROOT)
    if build is None or not (build / "compile_commands.json").exists():
        sys.exit(f"check_headers.py: {build or ROOT / 'build'} has no compile_commands.json; configure a build first")
    compiler, flags = flags_of(build)
    compiler = args.compiler or compiler
    headers = [header.resolve() for header in args.headers] or headers_of(ROOT)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, args.jobs)) as pool:
        errors = pool.map(lambda header: error_of(header, compiler, flags), headers)
        for header, error in zip(headers, errors):
            if error is not None:
                failed += 1
                print(f"{os.path.relpath(header, ROOT)} does not compile alone: {error}", flush=True)
    print(f"{len(headers) - failed} of {len(headers)} headers compile alone, {failed} do not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
