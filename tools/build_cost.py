#!/usr/bin/env python3
"""Measures what a build costs: CPU seconds by module, and the headers that cost most.

    tools/build_cost.py [--build DIR] [--tests] [--target T]... [--headers N] [--jobs N] [--touch] [--json FILE]

Builds into a fresh folder (default build/cost, removed first) without ccache, with every compiler call and every link
under a timer of its own, and prints a table: module, files, CPU seconds. Then the dearest headers: CPU seconds to parse
the header alone, times the number of compiler calls whose dependencies name it (an upper bound where a precompiled
header already holds it). --touch also rebuilds after touching each of a few source files: the median and the worst.
Without --tests it is the build of scripts/demo.sh: the program alone. Two hardware threads of one core slow each other,
so the CPU seconds of calls beside each other may be twice those of calls alone: --jobs 1 measures the work itself.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def timed_call(log, command):
    """Runs one compiler call and appends 'CPU seconds, command' to the log; the exit status is the call's."""
    status = subprocess.call(command)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps({"cpu_s": usage.ru_utime + usage.ru_stime, "command": command}) + "\n")
    return status


def module_of(source, build):
    """The module (or folder) that a source or object file belongs to; of files compiled as one, their module."""
    path = pathlib.Path(source)
    if re.fullmatch(r"unity_.*_\d+_cxx\.cxx", path.name):  # parts of a module: its name is all that they share
        tests = any(part.endswith("_test.dir") for part in path.parts)
        path = path.parent / ("united_test.cc" if tests else "united.cc")
    for base in (build, ROOT):
        if path.is_relative_to(base):
            path = path.relative_to(base)
    parts = path.parts
    if parts[:2] == ("src", "butterfly") and len(parts) > 3:
        name = "/".join(parts[2:-1]).split("/CMakeFiles")[0].split("/generated")[0]
        return f"{name} (tests)" if path.stem.endswith("_test") else name
    return "/".join(parts[:2]) if len(parts) > 1 else str(path)


def source_of(command):
    """The file that a compiler call translates, or what it links."""
    if "-c" in command:
        return next((arg for arg in command[command.index("-c") + 1:] if not arg.startswith("-")), "?")
    if "-o" in command:
        return command[command.index("-o") + 1]
    return "?"


def configure(build, tests):
    if build.exists():
        shutil.rmtree(build)
    launcher = f"{sys.executable};{pathlib.Path(__file__).resolve()};--timed;{build / 'calls.jsonl'}"
    subprocess.run(["cmake", "--preset", "release", "-B", str(build), f"-DBUTTERFLY_TESTS={'ON' if tests else 'OFF'}",
                    f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", f"-DCMAKE_CXX_LINKER_LAUNCHER={launcher}"],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run_build(build, targets, jobs=None):
    command = ["cmake", "--build", str(build)] + (["--parallel", str(jobs)] if jobs else [])
    if targets:
        command += ["--target", *targets]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])
    return time.monotonic() - begun


def calls_of(build):
    with open(build / "calls.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def header_costs(build, calls, count):
    """[(total CPU seconds, alone, uses, header)], dearest first: of ours, and of those that ours include."""
    uses = collections.Counter()
    text = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        if line.startswith("    "):
            path = line.strip()
            uses[str((build / path).resolve()) if not path.startswith("/") else path] += 1
    direct = set()
    for base in ("src", "include", "apps", "tests"):
        for path in (ROOT / base).rglob("*"):
            if path.suffix in (".h", ".cc"):
                for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                    if line.startswith("#include <"):
                        direct.add(line.split("<", 1)[1].split(">", 1)[0])
    flags = next(([arg for arg in call["command"][1:] if arg.startswith(("-I", "-std", "-D"))] for call in calls
                  if "apps/butterfly" in source_of(call["command"])), [])
    flags += [f"-isystem{path}" for path in build.rglob("generated") if path.is_dir()]
    chosen = [h for h, n in uses.items() if n > 2 and (h.startswith(str(ROOT)) and h.endswith(".h")
                                                       or any(h.endswith("/" + d) for d in direct))]
    costs = []
    for header in chosen:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(["g++", *flags, "-w", "-fsyntax-only", "-x", "c++", "-include", header, "/dev/null"],
                              capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode == 0:
            alone = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            costs.append((alone * uses[header], alone, uses[header], header))
    return sorted(costs, reverse=True)[:count]


def touch_costs(build, targets):
    """Seconds to rebuild after touching one source, for a spread of our sources: [(seconds, file)]."""
    sources = sorted(p for p in (ROOT / "src").rglob("*.cc") if not p.stem.endswith(("_test", "_bench")))
    sources += sorted((ROOT / "apps").rglob("*.cc"))
    times = []
    for path in sources[::max(1, len(sources) // 40)]:
        path.touch()
        times.append((run_build(build, targets), path))
    return sorted(times)


def main():
    if sys.argv[1:2] == ["--timed"]:
        return timed_call(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description="Measures what a build costs, by module and by header.")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cost", help="folder to build in; removed first")
    parser.add_argument("--tests", action="store_true", help="with all tests, not the program alone")
    parser.add_argument("--target", action="append", default=[], help="build only this target")
    parser.add_argument("--jobs", type=int, help="compiler calls at a time (default: one for each CPU)")
    parser.add_argument("--headers", type=int, default=12, help="how many headers to list")
    parser.add_argument("--touch", action="store_true", help="time rebuilds after touching one file")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    options = parser.parse_args()
    build = options.build.resolve()
    targets = options.target or ([] if options.tests else ["butterfly"])

    configure(build, options.tests)
    wall = run_build(build, targets, options.jobs)
    calls = calls_of(build)
    modules = collections.defaultdict(lambda: [0, 0.0])
    for call in calls:
        row = modules[module_of(source_of(call["command"]), build)]
        row[0] += 1
        row[1] += call["cpu_s"]
    total = sum(row[1] for row in modules.values())
    print(f"{'module':<44} {'calls':>6} {'CPU s':>8}")
    for name, (count, seconds) in sorted(modules.items(), key=lambda item: -item[1][1]):
        print(f"{name:<44} {count:>6} {seconds:>8.1f}")
    print(f"{'total':<44} {len(calls):>6} {total:>8.1f}   ({total / 60:.1f} CPU minutes, {wall:.0f} s with "
          f"{options.jobs or os.cpu_count()} calls at a time)")
    worst = sorted(calls, key=lambda call: -call["cpu_s"])[:8]
    print("\ndearest calls: " + ", ".join(f"{pathlib.Path(source_of(c['command'])).name} {c['cpu_s']:.1f}" for c in worst))

    headers = header_costs(build, calls, options.headers) if options.headers else []
    if headers:
        print(f"\n{'header':<64} {'alone s':>8} {'uses':>6} {'CPU s':>8}")
        for cost, alone, uses, header in headers:
            print(f"{header.removeprefix(str(ROOT) + '/')[-64:]:<64} {alone:>8.2f} {uses:>6} {cost:>8.1f}")
    touched = touch_costs(build, targets) if options.touch else []
    if touched:
        print(f"\nrebuild and link after touching one of {len(touched)} sources: median "
              f"{statistics.median(t for t, _ in touched):.1f} s, worst {touched[-1][0]:.1f} s ({touched[-1][1].relative_to(ROOT)})")
    if options.json:
        options.json.write_text(json.dumps({"cpu_s": total, "wall_s": wall, "modules": modules,
                                            "headers": headers, "touch": [(t, str(p)) for t, p in touched]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
