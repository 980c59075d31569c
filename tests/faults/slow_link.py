#!/usr/bin/env python3
"""Proves: a slow or lossy link and a worker without CPU are not taken for dead.

Four workers in a lab: the second behind a link of 50 ms each way that loses 1 % of its frames, the third with a
quarter of a CPU. Generations follow one another for --minutes, and none may have more than its first epoch.

    slow_link.py --minutes 10
    slow_link.py --quick          10 seconds, and only another text is a fault
    slow_link.py --break          the second worker is really stopped: must fail

Needs root for the lab. The CPU is taken away by a control group, or by stopping the process three quarters of the time.
"""

import argparse
import os
import re
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import harness
from harness import Generation, Worker, median, reference
from netlab import PREFIX, Lab

LOAD = {"tokens": 30}
PERIOD_S = 0.1
SHARE = 0.25


def remove_stale_groups(root):
    """What killed campaigns left behind."""
    for name in os.listdir(root) if os.path.isdir(root) else []:
        if name.startswith(PREFIX + "-") and not os.path.exists(f"/proc/{name.split('-')[1]}"):
            os.rmdir(os.path.join(root, name))


@contextmanager
def group_with(pid, share=SHARE):
    """A control group of version 2 or 1 that gives the process this share of a CPU; yields its name."""
    name = f"{PREFIX}-{os.getpid()}"
    period = int(PERIOD_S * 1e6)
    for root, limits in (("/sys/fs/cgroup", {"cpu.max": f"{int(share * period)} {period}"}),
                         ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(int(share * period))})):
        folder = os.path.join(root, name)
        remove_stale_groups(root)
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            for file, value in limits.items():
                with open(os.path.join(folder, file), "r+", encoding="ascii") as limit:
                    limit.write(value)
            with open(os.path.join(folder, "cgroup.procs"), "w", encoding="ascii") as procs:
                procs.write(str(pid))
        except OSError:
            os.rmdir(folder)
            continue
        try:
            yield f"control group {folder}"
            return
        finally:
            try:
                with open(os.path.join(root, "cgroup.procs"), "w", encoding="ascii") as procs:
                    procs.write(str(pid))
            except OSError:
                pass  # it has ended
            os.rmdir(folder)
    with duty_cycle(pid, share) as told:
        yield told


@contextmanager
def duty_cycle(pid, share=SHARE, period_s=PERIOD_S):
    """Lets the process go on for this share of every period only."""
    over = threading.Event()

    def turn():
        with suppress(ProcessLookupError):  # it has ended
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(period_s * (1 - share))
                os.kill(pid, signal.SIGCONT)
                over.wait(period_s * share)
    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield "SIGSTOP and SIGCONT in turns"
    finally:
        over.set()
        thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--delay-ms", type=float, default=50)
    parser.add_argument("--loss", type=float, default=1, help="percent")
    parser.add_argument("--duty-cycle", action="store_true", help="also where there are control groups")
    parser.add_argument("--break", dest="wrong", action="store_true")
    options = parser.parse_args()
    seconds = 10 if options.quick or options.wrong else options.minutes * 60
    text = reference(**LOAD)
    runs, later_epochs, suspicions, differing, times = 0, 0, 0, 0, []
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(5, slow={1: (options.delay_ms, options.loss)}))
        workers = [stack.enter_context(Worker(listen=f"{lab.address(i)}:7000", namespace=lab.name(i))) for i in range(4)]
        limit = duty_cycle if options.duty_cycle else group_with
        told = stack.enter_context(limit(workers[2].pid))
        print(f"link of worker 2: {options.delay_ms:g} ms, {options.loss:g} % loss; worker 3: {SHARE:g} of a CPU by {told}", flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with Generation(workers, namespace=lab.name(4), **LOAD) as run:
                if options.wrong:
                    run.wait_for_bytes(1)
                    workers[1].signal(signal.SIGSTOP)
                code = run.wait(300)
            runs += 1
            times.append(run.ended - run.started)
            later = [f"epoch {number}: {rest}" for _, number, rest in run.epochs() if number > 1]
            suspected = [line for _, line in run.lines if re.search("suspect", line)]
            later_epochs, suspicions = later_epochs + len(later), suspicions + len(suspected)
            same = code == 0 and run.text() == text
            differing += not same
            if later or not same:
                print(f"BROKEN: run {runs}: exit code {code}, {'same' if same else 'ANOTHER'} text; {'; '.join(later)}\n{run.errors()}", flush=True)
            if options.wrong:
                break
    print(f"{runs} generations in {seconds:.0f} s, {median(times):.1f} s each (median; {max(times):.1f} s worst): "
          f"{later_epochs} false deaths, {suspicions} suspicions told, {differing} texts that differ")
    return differing + (0 if options.quick and not options.wrong else later_epochs)


if __name__ == "__main__":
    harness.campaign(main)
