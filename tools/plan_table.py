#!/usr/bin/env python3
"""Every strategy on the described clusters, side by side, as a Markdown table.

    tools/plan_table.py [--butterfly BINARY] [--model SHAPE] [--type TYPE] [--goal GOAL] [--batch N] [--context N]

Predictions are arithmetic: the table is the same on every machine. Exit status 1 where `auto` is worse, for its goal,
than a strategy that it could have chosen: then there is a mistake in it.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLUSTERS = ["equal", "fast-and-slow", "two-sites", "memory-starved", "mixed-8", "mixed-64"]
# What each goal wants, and whether less is better.
GOALS = {"latency": ("token_s", True), "throughput": ("tokens_per_s", False), "memory": ("memory_use", True)}


def plan(options, cluster):
    command = [options.butterfly, "plan", "-m", options.model, "--type", options.type, "--goal", options.goal,
               "--batch", str(options.batch), "--context", str(options.context), "--json",
               "--cluster", str(ROOT / "examples/clusters" / (cluster + ".toml"))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{cluster}: {run.stderr.strip()}")
    return json.loads(run.stdout)


def seconds(value):
    if value is None:
        return "unknown"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def row(strategy):
    if not strategy["feasible"]:
        return f"does not fit: {strategy['reason']} | | | | | |"
    return (f"{seconds(strategy['first_token_s'])} | {seconds(strategy['token_s'])} | {strategy['tokens_per_s']:.2f} | "
            f"{strategy['hops']} | {strategy['load_balance_factor']:.3f} | {100 * strategy['memory_use']:.0f} % |")


def worse_than(auto, others, goal):
    """Names of the strategies that beat `auto` for the goal."""
    key, less = GOALS[goal]
    feasible = [s for s in others if s["feasible"]]
    if not auto["feasible"]:
        return [s["strategy"] for s in feasible]
    slack = 1e-9 * abs(auto[key])
    return [s["strategy"] for s in feasible if (auto[key] - s[key] if less else s[key] - auto[key]) > slack]


def main():
    parser = argparse.ArgumentParser(description="Every strategy on the described clusters.")
    parser.add_argument("--butterfly", default=str(ROOT / "build/release/bin/butterfly"))
    parser.add_argument("--model", default="llama-2-13b")
    parser.add_argument("--type", default="q4_0")
    parser.add_argument("--goal", choices=sorted(GOALS), default="latency")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    print("| cluster | strategy | first token | per token | tokens/s | hops | balance | fullest node |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    mistakes = []
    for cluster in CLUSTERS:
        strategies = plan(options, cluster)["strategies"]
        for index, strategy in enumerate(strategies):
            print(f"| {cluster if index == 0 else ''} | {strategy['strategy']} | {row(strategy)}")
        auto = next(s for s in strategies if s["strategy"] == "auto")
        mistakes += [f"{cluster}: auto is worse than {name}" for name in worse_than(auto, strategies, options.goal)]
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
