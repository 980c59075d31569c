#!/usr/bin/env python3
"""Runs one benchmark of two builds in turns and says what changed.

  tools/bench_compare.py --before old/butterfly --after build/release/bin/butterfly -- bench memory --rounds 3
  tools/bench_compare.py --before HEAD~5 --after HEAD -- bench model -m models/demo.gguf

A side is a program, or a commit of this repository, which is built in a folder of its own. Each round runs both, the
order changes from round to round, and each number of the JSON that the benchmark prints is compared on its own: the
median of the rounds' ratios, and the smallest and largest of them. A number has changed where enough rounds agree on
the direction that chance alone would say so of any number once in twenty runs at most (sign test, times the count of
numbers), and the median by at least --percent. The exit status is 1 where a number got worse (only names that tell
their direction count).
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What the end of a name says of better and worse.
MORE_IS_BETTER = ("per_s", "gflops", "gb_per_s", "gops", "_rate", "hits", "speedup", "of_peak", "share_of_roof",
                  "share_of_ideal", "mfu", "load_balance_factor")
LESS_IS_BETTER = ("_ns", "_us", "_ms", "_s", "bytes", "misses", "allocations", "per_gb", "gap")
# Settings and names of rows, not results.
LABELS = ("name", "type", "isa", "threads", "rows", "size", "members", "engine", "algorithm", "bytes", "kind", "shape",
          "sequences", "codec", "tls", "rounds", "block_bytes", "operation", "model", "nodes", "layers", "strategy", "goal",
          "precision", "ranks", "batch", "seq", "serialisation", "buffer", "log", "seed")


def program_of(side):
    if os.access(side, os.X_OK) and pathlib.Path(side).is_file():
        return str(pathlib.Path(side).resolve())
    found = subprocess.run(["git", "rev-parse", "--verify", "--short", f"{side}^{{commit}}"], cwd=ROOT,
                           capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"bench_compare: '{side}' is neither a program nor a commit")
    commit = found.stdout.strip()
    folder = ROOT / "build" / "compare" / commit
    if not (folder / "source").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(folder / "source"), commit], cwd=ROOT, check=True,
                       stdout=sys.stderr)
    print(f"building {commit}", file=sys.stderr)
    subprocess.run(["cmake", "-S", str(folder / "source"), "-B", str(folder / "build"), "-G", "Ninja",
                    "-DCMAKE_BUILD_TYPE=Release", "-DBUTTERFLY_TESTS=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(folder / "build"), "--target", "butterfly"], check=True, stdout=sys.stderr)
    return str(folder / "build" / "bin" / "butterfly")


def numbers_of(value, name=""):
    """The numbers of a JSON value by name; a row of a list is named after its labels."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return {}
    if isinstance(value, (int, float)):
        return {name: float(value)}
    found = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in LABELS and not isinstance(inner, (dict, list)):
                continue
            found.update(numbers_of(inner, f"{name}.{key}" if name else key))
        return found
    for at, inner in enumerate(value):
        label = str(at)
        if isinstance(inner, dict):
            said = [f"{key}={inner[key]}" for key in LABELS if key in inner and not isinstance(inner[key], (dict, list))]
            label = ",".join(said) or label
        found.update(numbers_of(inner, f"{name}[{label}]"))
    return found


def direction(name):
    """1: more is better; -1: less; 0: the name does not say."""
    last = name.split(".")[-1]
    if last.endswith(MORE_IS_BETTER):
        return 1
    return -1 if last.endswith(LESS_IS_BETTER) else 0


def chance(ratios):
    """How likely as many rounds as these agree on a direction where nothing changed: the sign test, both sides."""
    rounds = len(ratios)
    same = max(sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios))
    return min(1.0, 2 * sum(math.comb(rounds, agreeing) for agreeing in range(same, rounds + 1)) / 2**rounds)


def compare(rounds, percent):
    """Rows of name, median before, median after, ratios and verdict, from pairs of numbers by name, one of each round."""
    rows = []
    for name in rounds[0][0]:
        pairs = [(before[name], after[name]) for before, after in rounds if name in before and name in after]
        if len(pairs) < len(rounds) or any(before == 0 for before, _ in pairs):
            continue
        ratios = [after / before for before, after in pairs]
        rows.append([name, statistics.median(before for before, _ in pairs),
                     statistics.median(after for _, after in pairs), ratios, ""])
    for row in rows:
        change = statistics.median(row[3]) - 1
        if abs(change) >= percent / 100 and chance(row[3]) * len(rows) <= 0.05:
            better = direction(row[0]) * change
            row[4] = "better" if better > 0 else "worse" if better < 0 else "changed"
    return rows


def measure(program, command):
    done = subprocess.run([program, *command, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_compare: {program} {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return numbers_of(json.loads(done.stdout))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="program or commit")
    parser.add_argument("--after", required=True, help="program or commit")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--percent", type=float, default=2.0, help="smaller changes are not told [2]")
    parser.add_argument("--all", action="store_true", help="also what did not change")
    parser.add_argument("command", nargs="+", help="the benchmark, after --")
    arguments = parser.parse_args()
    sides = [program_of(arguments.before), program_of(arguments.after)]
    rounds = []
    for at in range(arguments.rounds):
        print(f"round {at + 1} of {arguments.rounds}", file=sys.stderr)
        order = [0, 1] if at % 2 == 0 else [1, 0]
        found = {side: measure(sides[side], arguments.command) for side in order}
        rounds.append((found[0], found[1]))
    rows = compare(rounds, arguments.percent)
    if not rows:
        sys.exit("bench_compare: the two sides have no number in common")
    shown = [row for row in rows if row[4] or arguments.all]
    for name, before, after, ratios, verdict in shown:
        print(f"{verdict:8s} {statistics.median(ratios):6.3f} [{min(ratios):.3f} to {max(ratios):.3f}]  "
              f"{before:.6g} -> {after:.6g}  {name}")
    needed = math.ceil(math.log2(2 * len(rows) / 0.05))
    if arguments.rounds < needed:
        print(f"{arguments.rounds} rounds cannot show a change among {len(rows)} numbers: {needed} are needed")
    print(f"{len(rows)} numbers, {sum(1 for row in rows if row[4])} changed, in {arguments.rounds} rounds")
    return 1 if any(row[4] == "worse" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
