#!/usr/bin/env python3
"""Proves: whichever worker dies, in whatever way and at whatever moment, the text stays the same and comes soon.

Four workers write a text; one of them is struck, and the text must be, to the byte, what one process writes.

    moments   load, prefill, decode at three tokens, and during the recovery from another worker's death
    faults    SIGKILL, SIGSTOP, the link pulled with data in flight (needs root), garbage on the wire;
              with --all-faults also one flipped bit, reset connections, connections that stall
    seconds   from the fault to the next token; for load and prefill, whose next token has to wait for a whole prompt, to
              the moment when the workers are ready again. Measured here, outside the program, by when bytes arrive.
    bounds    1 s after SIGKILL and resets, 3 s after what is silent or lies; for load the time that loading takes
              without a fault may be added, since most of it is still to be done

    kill_matrix.py                   every worker, moment and fault, --runs times
    kill_matrix.py --quick           a part of it, without root and without bounds on the time
    kill_matrix.py --random N        N times: random victims (two at once, sometimes), moments and faults
    kill_matrix.py --markdown FILE   also writes the table
    kill_matrix.py --break           compares with a wrong text: must fail

Exit code 0: all held; 1: a text differed, a run failed, or a bound was broken; 77: cannot run here.
"""

import argparse
import random
import re
import signal
import time
from collections import defaultdict
from dataclasses import dataclass

import harness
import models
from bench import BENCHES, WORKERS, Loopback, Proxied, sleep_until
from harness import Hang, Skip, median, reference

LONG_PROMPT = "To be, or not to be, that is the question. " * 60
SMALL = {"tokens": 400}
BIG = {"tokens": 40, "model": models.slow_to_load(), "prompt": LONG_PROMPT}
BIG_DECODE = {"tokens": 60, "model": models.slow_to_load()}
QUICK = {"tokens": 60, "model": models.quick_to_load()}
MOMENTS = {"load": BIG, "prefill": BIG, "decode 10": SMALL, "decode 150": SMALL, "decode 350": SMALL, "recovery": BIG_DECODE}
BOUND_S = {"SIGKILL": 1.0, "SIGSTOP": 3.0, "link down": 3.0, "garbage": 3.0, "one bit": 3.0, "reset": 1.0, "stall": 3.0}
READY = r"\b(\d+) of \1 workers ready|\bepoch \d+: .*\bready\b"
ANYBODY = r"^worker .*:"
ATTEMPTS = 5  # a fault may come too late for the run it was meant for


@dataclass
class Outcome:
    """What one strike did."""

    seconds: float | None
    broken: list  # sentences
    slow: str = ""
    late: bool = False  # the run had no need of the victim any more


def expected(load, wrong):
    text = reference(**load)
    return harness.wrong(text) if wrong else text


def wait_for_moment(run, moment, chance, windows):
    """Returns when the run has come to the moment; `chance` in 0..1 chooses where in it."""
    if moment == "load":
        run.wait_for(r"workers ready")
        time.sleep(0.8 * chance * windows["load"])
    elif moment == "prefill":
        run.wait_for(READY)
        time.sleep((0.05 + 0.8 * chance) * windows["prefill"])
    else:
        run.wait_for_bytes(1 if moment == "recovery" else int(moment.split()[1]))


def measure_windows(bench):
    """Seconds that loading and reading the prompt last on fresh workers when nothing fails."""
    with bench.generate(**BIG) as run:
        begin, ready = run.wait_for(r"workers ready"), run.wait_for(READY)
        if run.wait() != 0 or not run.out:
            raise RuntimeError(f"the undisturbed run failed:\n{run.errors()}")
        return {"load": ready[0] - begin[0], "prefill": run.out[0][0] - ready[0]}


def bound_of(cell, windows):
    return BOUND_S[cell[2]] + (windows["load"] if cell[1] == "load" else 0)


def judge(run, fault_at, moment, text, culprit):
    """The outcome of a run in which a fault began at fault_at; `culprit` matches the line that tells of it."""
    try:
        code = run.wait()
    except Hang as hang:
        return Outcome(None, [f"hang: {hang}"])
    if code != 0:
        last = [line for _, line in run.lines if line.startswith("butterfly: ")][-1:] or [run.errors()]
        return Outcome(None, [f"exit code {code}: {last[0]}"])
    if run.text() != text:
        same = next((i for i, (a, b) in enumerate(zip(run.text(), text)) if a != b), min(len(run.text()), len(text)))
        return Outcome(None, [f"the text differs from byte {same} on ({len(run.text())} bytes, expected {len(text)})"])
    noticed = [at for at, line in run.lines if at > fault_at and re.search(culprit, line)]
    if not noticed:
        return Outcome(None, [], late=True)
    if moment not in ("load", "prefill"):
        return Outcome(run.next_token_after(fault_at), [])
    return Outcome(next(at for at, line in run.lines if at > noticed[0] and re.search(READY, line)) - fault_at, [])


def strike(bench, cell, text, chance, windows):
    """One run over fresh workers, who hold no weights yet, in which one of them is struck."""
    victim, moment, fault = cell
    others = [i for i in range(WORKERS) if i != victim]
    first = others[int(chance * len(others)) % len(others)] if moment == "recovery" else None
    for index in range(WORKERS):
        bench.start(index)
    with bench.generate(**MOMENTS[moment]) as run:
        wait_for_moment(run, moment, chance, windows)
        if first is not None:
            begun = bench.workers[first].signal(signal.SIGKILL)
            sleep_until(begun + 0.01 + 0.1 * chance)
        fault_at = bench.strike(victim, fault)
        # What is wrong with a connection may be told by either end.
        lied = fault in Proxied.faults + Proxied.more_faults
        culprit = ANYBODY if lied else re.escape(bench.addresses()[victim]) + ".* went away"
        outcome = judge(run, fault_at, moment, text, culprit)
    bench.mend(victim, fault)
    if first is not None:
        bench.start(first)
    outcome.broken += bench.check()
    return outcome


def run_cell(bench, cell, options, generator, windows):
    """The outcome of the first strike of this cell that was not late."""
    text = expected(MOMENTS[cell[1]], options.wrong)
    for _ in range(ATTEMPTS):
        outcome = strike(bench, cell, text, generator.random(), windows)
        if not outcome.late:
            break
    if not options.quick and outcome.seconds is not None and outcome.seconds > bound_of(cell, windows):
        outcome.slow = f"{outcome.seconds:.3f} s, the bound is {bound_of(cell, windows):.2f} s"
    if outcome.late:
        outcome.broken.append(f"{ATTEMPTS} times the run ended without noticing the fault")
    return outcome


def report(cell, outcome, number):
    victim, moment, fault = cell
    seconds = "     -" if outcome.seconds is None else f"{outcome.seconds:6.3f}"
    print(f"run {number}  worker {victim + 1}  {moment:10}  {fault:9}  {seconds} s  {'; '.join(outcome.broken) or 'same text'}", flush=True)


def open_bench(kind, skipped):
    try:
        return kind()
    except Skip as skip:
        skipped.append(f"{', '.join(kind.faults)}: {skip}")
        return None


def run_matrix(options, generator):
    """{(victim, moment, fault): [Outcome]} and what was skipped."""
    results, skipped = defaultdict(list), []
    for kind in BENCHES:
        known = kind.faults + (kind.more_faults if options.all_faults else ())
        faults = [fault for fault in known if re.search(options.faults, fault)]
        moments = [moment for moment in MOMENTS if re.search(options.moments, moment)]
        bench = open_bench(kind, skipped) if faults else None
        if not bench:
            continue
        with bench:
            windows = measure_windows(bench)
            for number in range(options.runs):
                for cell in [(v, m, f) for f in faults for m in moments for v in range(WORKERS)]:
                    outcome = run_cell(bench, cell, options, generator, windows)
                    report(cell, outcome, number + 1)
                    results[cell].append(outcome)
    return results, skipped


def run_quick(options, generator):
    """Each fault that needs no root, at four moments, the victims in turn."""
    results = defaultdict(list)
    MOMENTS.update(load=QUICK, recovery=QUICK)
    victim = generator.randrange(WORKERS)
    for kind in (Loopback, Proxied):
        with kind() as bench:
            for fault in kind.faults:
                for moment in ("decode 10", "decode 150", "recovery", "load"):
                    cell, victim = (victim, moment, fault), (victim + 1) % WORKERS
                    outcome = run_cell(bench, cell, options, generator, {"load": 0.1})
                    report(cell, outcome, 1)
                    results[cell].append(outcome)
    return results, []


def strike_randomly(bench, generator, options):
    """(what was done, Outcome) for random victims, moment, fault and model."""
    load = generator.choice([SMALL, SMALL, BIG, BIG_DECODE])
    victims = generator.sample(range(WORKERS), generator.choice([1, 1, 2]))
    faults = [generator.choice(bench.faults + bench.more_faults) for _ in victims]
    text = expected(load, options.wrong)
    with bench.generate(**load) as run:
        run.wait_for(r"workers ready")
        wait = generator.uniform(0, {id(SMALL): 0.5, id(BIG): 3.0, id(BIG_DECODE): 1.5}[id(load)])
        time.sleep(wait)
        fault_at = min([bench.strike(victim, fault) for victim, fault in zip(victims, faults)])
        outcome = judge(run, fault_at, "decode", text, ANYBODY)
    for victim, fault in zip(victims, faults):
        bench.mend(victim, fault)
    outcome.broken += bench.check()
    what = " and ".join(f"{fault} of worker {victim + 1}" for victim, fault in zip(victims, faults))
    return f"{what}, {wait:.3f} s after loading began, {load['tokens']} tokens of {'demo' if load is SMALL else 'the big model'}", outcome


def run_random(options):
    """(number of strikes, late ones, broken ones); every seed can be repeated alone by --seed."""
    skipped, benches = [], []
    broken = late = 0
    try:
        benches = [bench for kind in BENCHES if (bench := open_bench(kind, skipped))]
        for number in range(options.random):
            seed = options.seed + number
            generator = random.Random(seed)
            done, outcome = strike_randomly(generator.choice(benches), generator, options)
            late += outcome.late
            broken += bool(outcome.broken)
            ending = f"BROKEN: {'; '.join(outcome.broken)}" if outcome.broken else ("same text, not noticed" if outcome.late else f"same text, {outcome.seconds or 0:.3f} s")
            print(f"seed {seed}: {done}: {ending}", flush=True)
    finally:
        for bench in benches:
            bench.stack.close()
    for sentence in skipped:
        print(f"skipped: {sentence}")
    print(f"{options.random} random faults: {broken} broken, {late} came too late to be noticed")
    return broken


def table(results):
    """Markdown: a row for each fault and moment, a column for each worker; median / worst seconds."""
    lines = ["| fault | moment | " + " | ".join(f"worker {v + 1}" for v in range(WORKERS)) + " | same text |",
             "|---|---|" + "--:|" * (WORKERS + 1)]
    rows = list(dict.fromkeys((fault, moment) for _, moment, fault in results))
    for fault, moment in rows:
        row, good, count = [], 0, 0
        for victim in range(WORKERS):
            outcomes = results.get((victim, moment, fault), [])
            seconds = [o.seconds for o in outcomes if o.seconds is not None and not o.broken]
            row.append(f"{median(seconds):.2f} / {max(seconds):.2f}" if seconds else "-")
            good, count = good + sum(not o.broken for o in outcomes), count + len(outcomes)
        lines.append(f"| {fault} | {moment} | " + " | ".join(row) + f" | {good} of {count} |")
    return "\n".join(lines)


def summary(results, skipped, options):
    """Prints the table; the number of broken promises."""
    shown = table(results)
    broken = [(cell, o) for cell, outcomes in results.items() for o in outcomes if o.broken]
    slow = [(cell, o.slow) for cell, outcomes in results.items() for o in outcomes if o.slow]
    total = sum(map(len, results.values()))
    heading = f"Seconds, median / worst of {options.runs} runs. {harness.machine_line()}; commit {harness.commit()}."
    print(f"\n{heading}\n\n{shown}\n")
    for (victim, moment, fault), outcome in broken:
        print(f"BROKEN: worker {victim + 1}, {moment}, {fault}: {'; '.join(outcome.broken)}")
    for (victim, moment, fault), sentence in slow:
        print(f"SLOW: worker {victim + 1}, {moment}, {fault}: {sentence}")
    for sentence in skipped:
        print(f"skipped: {sentence}")
    print(f"{total} faults: {total - len(broken)} with the same text, {len(broken)} broken, {len(slow)} beyond their bound")
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as page:
            page.write(f"{heading}\n\n{shown}\n")
    return len(broken) + len(slow)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--faults", default="", help="only faults that match this regular expression")
    parser.add_argument("--all-faults", action="store_true", help="also one flipped bit, reset connections, stalled connections")
    parser.add_argument("--moments", default="", help="only moments that match")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    if options.random:
        return run_random(options)
    generator = random.Random(options.seed)
    results, skipped = run_quick(options, generator) if options.quick else run_matrix(options, generator)
    return summary(results, skipped, options)


if __name__ == "__main__":
    harness.campaign(main)
