#!/usr/bin/env python3
"""`butterfly train --engine mpi` under mpirun, as a user meets it: the weights of threads, errors said once, an asked-for
end, a rank that is lost, ranks on what looks like two machines. Skipped where this build or this machine has no MPI."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from program import PROGRAM, TIMEOUT_S, butterfly, environment

MODEL = ["--model", "tinytransformer-tiny", "--seq", "16", "--batch", "4", "--micro-batch", "1", "--threads", "1",
         "--data", "synthetic:markov", "--data.validation_share", "0", "--lr", "1e-3", "--schedule", "constant",
         "--deterministic", "--json"]
STEPS = 80  # more than are done before what is done to a run reaches it
MPIRUN = shutil.which("mpirun")
# As root, on fewer cores than ranks; leaks of MPI itself are not ours.
SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ASAN_OPTIONS": "detect_leaks=0",
            "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def missing():
    if MPIRUN is None:
        return "there is no mpirun"
    alone = butterfly("train", "--engine", "mpi", "--model", "none", "--data", "none", text=True)
    return "this build has no MPI" if "this build has no MPI" in alone.stderr else None


def mpi(*arguments, ranks=4, options=(), program=None):
    return subprocess.run([MPIRUN, *options, "-n", str(ranks), *(program or [PROGRAM, "train", "--engine", "mpi"]),
                           *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=environment(**SETTINGS), check=False)


def said(run):
    """The program's own lines on stderr; mpirun adds to them."""
    return [line for line in run.stderr.splitlines() if line.startswith("butterfly: ")]


@unittest.skipIf(missing(), missing())
class Mpi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def result(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)
        result = json.loads(run.stdout)  # one object: only rank 0 prints
        self.assertTrue(result["valid"], run.stderr)
        return result

    def test_any_strategy_ends_with_the_weights_of_threads(self):
        alone = self.result(butterfly("train", *MODEL, "--steps", "4", "--ranks", "2", text=True))["weights_hash"]
        for parallel in (["ddp"], ["zero1"], ["zero2"], ["zero3"], ["hybrid", "--shard-group", "2"]):
            with self.subTest(parallel=parallel):
                result = self.result(mpi(*MODEL, "--steps", "4", "--parallel", *parallel))
                self.assertEqual(result["weights_hash"], alone)
                self.assertEqual(len(result["ranks"]), 4)
        without = butterfly("train", "--engine", "mpi", *MODEL, "--steps", "4", text=True)
        self.assertEqual(self.result(without)["weights_hash"], alone)

    def test_what_is_wrong_on_one_rank_ends_all_and_is_said_once(self):
        run = mpi("--model", "tinytransformer-tiny", "--data", os.path.join(self.folder, "none.txt"))
        self.assertEqual((run.returncode, len(said(run))), (2, 1), run.stderr)
        one = ["sh", "-c", f'data=synthetic:markov; [ $OMPI_COMM_WORLD_RANK = 2 ] && data={self.folder}/none.tokens; '
               f'exec {shlex.quote(PROGRAM)} train --engine mpi "$@" --data $data', "sh"]
        run = mpi("--model", "tinytransformer-tiny", "--seq", "16", "--steps", "4", program=one)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertRegex("\n".join(said(run)), r"\Abutterfly: rank 2: \S+/none.tokens: [^\n]+\Z")

    def begun(self, *arguments):
        """A run that has saved its second step."""
        saved = os.path.join(self.folder, "saved")
        run = subprocess.Popen([MPIRUN, "-n", "3", PROGRAM, "train", "--engine", "mpi", *MODEL, "--steps", str(STEPS),
                                "--checkpoints", saved, "--save-every", "2", *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment(**SETTINGS))
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.kill)
        for line in run.stderr:
            if "saved as" in line:
                return run, saved
        raise AssertionError("the run ended before it saved")

    def test_an_asked_for_end_saves(self):
        run, saved = self.begun()
        run.send_signal(signal.SIGUSR1)  # mpirun hands it on; after SIGTERM it gives ranks a second
        stdout, stderr = run.communicate(timeout=TIMEOUT_S)
        self.assertEqual(run.returncode, 130, stderr)
        steps = json.loads(stdout)["steps_done"]
        self.assertLess(steps, STEPS)
        self.assertIn(f"step-{steps:08}", os.listdir(saved), stderr)

    def test_a_lost_rank_ends_the_run_which_resumes_from_its_checkpoint(self):
        run, saved = self.begun()
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(run.pid)], capture_output=True, text=True,
                                  check=True).stdout.split()
        began = time.monotonic()
        os.kill(int(children[1]), signal.SIGKILL)
        _, stderr = run.communicate(timeout=TIMEOUT_S)
        self.assertEqual(run.returncode, 137, stderr)
        self.assertLess(time.monotonic() - began, 100)
        self.assertNotIn(f"step-{STEPS:08}", os.listdir(saved))
        more = [*MODEL, "--steps", STEPS]
        resumed = self.result(mpi(*more, "--resume", saved, "--checkpoints", saved, ranks=2))
        undisturbed = self.result(butterfly("train", *more, text=True))
        self.assertEqual(resumed["weights_hash"], undisturbed["weights_hash"])

    def test_ranks_on_several_machines_need_insecure(self):
        if subprocess.run(["unshare", "-u", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("a second host name needs root")
        agent = os.path.join(self.folder, "agent")
        with open(agent, "w", encoding="utf-8") as script:
            script.write('#!/bin/sh\nhost=$1; shift; exec unshare -u sh -c "hostname $host; $*"\n')
        os.chmod(agent, 0o700)
        here = os.uname().nodename
        options = ["--mca", "plm_rsh_agent", agent, "--host", f"{here}:1,elsewhere:1"]
        run = mpi(*MODEL, "--steps", "4", ranks=2, options=options)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertRegex("\n".join(said(run)), r"\Abutterfly: the ranks are on 2 machines[^\n]+--insecure[^\n]+\Z")
        run = mpi(*MODEL, "--steps", "4", "--insecure", ranks=2, options=options)
        self.assertIn("plain text", run.stderr)
        alone = butterfly("train", *MODEL, "--steps", "4", text=True)
        self.assertEqual(self.result(run)["weights_hash"], self.result(alone)["weights_hash"])


if __name__ == "__main__":
    unittest.main()
