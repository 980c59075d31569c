"""What the attacks share: a list of cases, the program run with a limit of time, and the sentence that it must end with.

A case is a function of an empty folder; what it returns is what is wrong, nothing where the program held.
"""

import os
import re
import subprocess
import tempfile
import time

import harness
import models

DEMO = models.DEMO
PATIENCE_S = 60
CASES = []


def case(function):
    CASES.append(function)
    return function


class Skipped(Exception):
    """This machine cannot show it."""


def run(*arguments, prepare=None, **options):
    """(exit code, stdout, stderr), negative codes for signals."""
    done = subprocess.run([harness.PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
                          preexec_fn=prepare, env=environment(), check=False, **options)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def environment():
    return {**os.environ, "BUTTERFLY_HOME": os.devnull, "BUTTERFLY_LOG": "warn"}


def refused(outcome, *patterns):
    """Status 2 and one sentence with all of these."""
    code, _, errors = outcome
    if code != 2:
        return f"status {code}: {errors[-300:]}"
    sentences = [line for line in errors.splitlines() if line.startswith("butterfly: ") or line.startswith("--")]
    if len(sentences) != 1:
        return f"{len(sentences)} sentences: {errors[-300:]}"
    missing = [pattern for pattern in patterns if not re.search(pattern, sentences[0])]
    return f"no /{missing[0]}/ in: {sentences[0]}" if missing else ""


class Broken(Exception):
    """What is wrong, from deep inside a case."""


def must(holds, sentence):
    if not holds:
        raise Broken(sentence)


def run_cases(only=""):
    """How many did not hold. The last line counts all."""
    passed = failed = 0
    for each in CASES:
        if only not in each.__name__:
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="butterfly-attack-") as folder:
            os.chmod(folder, 0o755)
            try:
                wrong = each(folder)
            except Skipped as reason:
                print(f"skipped {each.__name__}: {reason}", flush=True)
                continue
            except (Broken, subprocess.TimeoutExpired, harness.Hang, OSError, RuntimeError, ValueError) as error:
                wrong = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
        failed += bool(wrong)
        passed += not wrong
        seconds = time.monotonic() - begin
        print(f"BROKEN  {each.__name__}: {wrong}" if wrong else f"held    {each.__name__} ({seconds:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed
