#!/usr/bin/env python3
"""What may happen to a training run while it goes, through the program alone: killed, interrupted, on another number of
ranks, a rank lost, a full disk, a loss that runs away. An undisturbed run on one rank is the oracle: in the
deterministic mode its weights, by hash.

BUTTERFLY_TEST_STEPS=200 takes as many steps where numbers of ranks are compared (10 otherwise)."""

import fcntl
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from program import PROGRAM, TIMEOUT_S, butterfly, environment

STEPS = int(os.environ.get("BUTTERFLY_TEST_STEPS", "10"))
LONG = 40  # more steps than the reports of which fit into the pipe of a Watched
MODEL = ["--model", "tinytransformer-tiny", "--seq", "16", "--batch", "4", "--micro-batch", "1", "--threads", "1",
         "--data", "synthetic:markov", "--data.validation_share", "0", "--lr", "1e-3", "--schedule", "constant",
         "--json"]
EXACT = [*MODEL, "--deterministic"]


def train(*arguments):
    return butterfly("train", *arguments, text=True)


class Watched:
    """A run whose stderr is read line by line. The pipe is so short that the run waits for its reader: what is done to
    it meets it in the middle, however busy the machine is."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROGRAM, "train", *arguments, "--log", "verbose"], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment())
        fcntl.fcntl(self.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        self.said = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def until(self, pattern):
        for line in self.process.stderr:
            self.said += line
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"the run ended without {pattern!r}: {self.said}")

    def finish(self):
        """Status, and the result."""
        self.said += self.process.stderr.read()
        stdout = self.process.stdout.read()
        return self.process.wait(timeout=TIMEOUT_S), json.loads(stdout) if stdout else None


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def place(self, name):
        return os.path.join(self.folder, name)

    def result(self, *arguments):
        run = train(*arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        result = json.loads(run.stdout)
        self.assertTrue(result["valid"], run.stderr)
        return result

    def of_steps(self, key, *arguments):
        log = self.place("log.jsonl")
        self.result(*arguments, "--log-file", log)
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        os.remove(log)
        return [line[key] for line in lines if line["event"] == "step"]

    def losses(self, *arguments):
        return self.of_steps("loss", *arguments)

    def refusal(self, *arguments):
        """The one sentence that a run ends with."""
        run = train(*arguments, "--log", "silent")
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stdout, "")
        self.assertRegex(run.stderr, r"\Abutterfly: [^\n]+\n\Z")
        return run.stderr


class Resuming(Runs):
    def test_a_run_that_was_killed_goes_on_to_the_weights_of_the_undisturbed_one(self):
        undisturbed = self.result(*EXACT, "--steps", LONG)
        saved = self.place("saved")
        with Watched(*EXACT, "--steps", str(LONG), "--checkpoints", saved, "--save-every", "5") as run:
            run.until("step 10: saved as ")
            run.process.kill()
            self.assertEqual(run.process.wait(), -signal.SIGKILL)
        for ranks, engine in ((1, "inproc"), (2, "inproc"), (2, "tcp")):
            with self.subTest(ranks=ranks, engine=engine):
                copy = self.place(f"copy-{ranks}-{engine}")
                shutil.copytree(saved, copy)
                resumed = self.result(*EXACT, "--steps", LONG, "--resume", copy, "--checkpoints", copy, "--ranks",
                                      ranks, "--engine", engine)
                self.assertEqual(resumed["weights_hash"], undisturbed["weights_hash"])
                self.assertEqual(resumed["final_loss"], undisturbed["final_loss"])
                self.assertEqual([name for name in os.listdir(copy) if name.startswith(".")], [])

    def test_an_asked_for_end_saves_and_the_run_goes_on_from_there(self):
        undisturbed = self.result(*EXACT, "--steps", LONG)
        for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
            for ranks in (1, 2):
                with self.subTest(signal=name, ranks=ranks):
                    saved = self.place(f"saved-{name}-{ranks}")
                    with Watched(*EXACT, "--steps", str(LONG), "--checkpoints", saved, "--ranks", str(ranks),
                                 "--engine", "tcp") as run:
                        run.until("step 3/")
                        run.process.send_signal(getattr(signal, name))
                        status, result = run.finish()
                    self.assertEqual(status, 130, run.said)
                    self.assertLess(result["steps_done"], LONG)
                    self.assertEqual(os.listdir(saved), [f"step-{result['steps_done']:08}"])
                    resumed = self.result(*EXACT, "--steps", LONG, "--resume", saved, "--checkpoints", saved)
                    self.assertEqual(resumed["weights_hash"], undisturbed["weights_hash"])


class Restarts(Runs):
    """The command starts rank 0 as a process of its own, and another one where that is killed."""

    def setUp(self):
        super().setUp()
        self.saved = self.place("saved")
        self.run_of = [*EXACT, "--steps", str(LONG), "--checkpoints", self.saved, "--save-every", "5", "--max-restarts", "1"]

    @staticmethod
    def rank_0(run):
        found = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True, check=True)
        return int(found.stdout)

    def test_a_run_whose_rank_0_is_killed_goes_on_to_the_weights_of_the_undisturbed_one(self):
        undisturbed = self.result(*EXACT, "--steps", LONG)
        for ranks, strategy in ((1, "ddp"), (3, "zero2")):
            with self.subTest(ranks=ranks), Watched(*self.run_of, "--ranks", str(ranks), "--engine", "tcp", "--parallel",
                                                    strategy) as run:
                run.until("step 10: saved as ")
                os.kill(self.rank_0(run), signal.SIGKILL)
                status, result = run.finish()
                self.assertEqual(status, 0, run.said)
                self.assertEqual(result["weights_hash"], undisturbed["weights_hash"])
                self.assertRegex(run.said, r"was ended by signal 9 \(Killed\); restart 1 of 1 goes on from \S+/step-000000")
            shutil.rmtree(self.saved)

    def test_more_deaths_than_restarts_end_it_and_one_before_the_first_checkpoint_begins_anew(self):
        with Watched(*self.run_of, "--ranks", "2", "--engine", "tcp") as run:
            run.until("step 2/")
            os.kill(self.rank_0(run), signal.SIGKILL)
            run.until("restart 1 of 1 begins anew: nothing is saved yet")
            run.until("step 10: saved as ")
            os.kill(self.rank_0(run), signal.SIGKILL)
            status, result = run.finish()
            self.assertEqual((status, result), (2, None), run.said)
            self.assertIn("as often as checkpoint.max_restarts says: 1", run.said)

    def test_asked_to_end_it_saves_once_also_where_the_command_itself_is_killed(self):
        for name, expected in (("SIGTERM", 130), ("SIGUSR1", 130), ("SIGKILL", -signal.SIGKILL)):
            with self.subTest(signal=name), Watched(*self.run_of, "--ranks", "2", "--engine", "tcp") as run:
                run.until("step 11/")
                run.process.send_signal(getattr(signal, name))
                self.assertEqual(run.finish()[0], expected, run.said)
                saved = sorted(os.listdir(self.saved))
                self.assertRegex(saved[-1], "step-000000[123]", run.said)
                self.assertNotEqual(saved[-1], "step-00000010", run.said)
            shutil.rmtree(self.saved)

    def test_a_mistake_is_said_once(self):
        self.assertIn("names 1 more", self.refusal(*self.run_of, "--data", "does-not-exist.txt"))


class Ranks(Runs):
    def test_any_number_of_ranks_ends_with_the_same_weights(self):
        alone = self.result(*EXACT, "--steps", STEPS)["weights_hash"]
        for engine in ("inproc", "tcp"):
            for ranks in (2, 3, 4):
                with self.subTest(ranks=ranks, engine=engine):
                    several = self.result(*EXACT, "--steps", STEPS, "--ranks", ranks, "--engine", engine)
                    self.assertEqual(several["weights_hash"], alone)

    def test_the_default_mode_stays_within_the_noise_of_reordered_sums(self):
        # Rounding grows from step to step as in any chaotic system: to 1e-6 in 20 steps, to some percent in 200. How
        # far another order of the same sums is away by then says what is noise: micro-batches of two sequences on one
        # rank. Each order has a growth of its own, a few times that of another.
        exact = self.losses(*EXACT, "--steps", STEPS)
        reordered = self.losses(*EXACT, "--steps", STEPS, "--micro-batch", "2")
        self.assertNotEqual(reordered, exact)
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                losses = self.losses(*MODEL, "--steps", STEPS, "--ranks", ranks)
                self.assertEqual(len(losses), STEPS)
                noise = 1e-7  # of a loss, in fp32
                for step, (loss, expected, other) in enumerate(zip(losses, exact, reordered)):
                    noise = max(noise, abs(other - expected) / expected)
                    self.assertLess(abs(loss - expected), 8 * noise * expected, f"step {step}")

    def test_a_killed_rank_is_missed_by_nobody(self):
        undisturbed = self.result(*EXACT, "--steps", LONG)["weights_hash"]
        with Watched(*EXACT, "--steps", str(LONG), "--ranks", "3", "--engine", "tcp") as run:
            victim = int(run.until("rank 2 is process ([0-9]+)")[1])
            run.until("step 5/")
            os.kill(victim, signal.SIGKILL)
            status, result = run.finish()
        self.assertEqual(status, 0, run.said)
        self.assertTrue(result["valid"], run.said)
        self.assertIn(f"rank 2 (process {victim}) is lost: killed by signal 9", run.said)
        self.assertIn("2 of 3 ranks go on", run.said)
        self.assertEqual(result["weights_hash"], undisturbed)

    def test_the_others_end_when_rank_0_is_killed(self):
        with Watched(*EXACT, "--steps", "100000", "--ranks", "2", "--engine", "tcp") as run:
            other = int(run.until("rank 1 is process ([0-9]+)")[1])
            run.until("step 3/")
            run.process.kill()
            # Its end of the pipe closes when it is gone, too.
            run.said += run.process.stderr.read()
        self.assertFalse(os.path.exists(f"/proc/{other}/exe"))


class Honesty(Runs):
    def test_weights_that_did_not_move_make_a_run_invalid(self):
        run = train(*MODEL, "--steps", "10", "--lr", "1e-30", "--optimizer.weight_decay", "0")
        self.assertEqual(run.returncode, 3, run.stderr)
        self.assertFalse(json.loads(run.stdout)["valid"])
        self.assertRegex(run.stderr, "audit +INVALID: .*did not move")

    def test_a_peak_that_was_measured_too_low_is_measured_again_before_it_is_believed(self):
        cache = self.place("cache")
        os.environ["XDG_CACHE_HOME"] = cache
        self.addCleanup(os.environ.pop, "XDG_CACHE_HOME")
        self.result(*MODEL, "--steps", "3")
        file, = glob.glob(os.path.join(cache, "butterfly/peaks-*"))
        with open(file, encoding="utf-8") as opened:
            text = re.sub("fp32_gflops .*", "fp32_gflops 0.5 0.5", opened.read())
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        self.assertLess(self.result(*MODEL, "--steps", "3")["mfu"], 1.0)
        with open(file, encoding="utf-8") as opened:
            self.assertNotIn("fp32_gflops 0.5", opened.read())


class Compression(Runs):
    def test_auto_probes_connections_and_not_memory_that_is_read_where_it_lies(self):
        for shared in ("true", "false"):
            sent = self.of_steps("bytes_sent", *MODEL, "--steps", "8", "--ranks", "2", "--engine", "tcp",
                                 "--compression", "auto", "--parallel.shared-memory", shared)
            self.assertEqual(len(sent), 8)
            self.assertEqual(len(set(sent)) == 1, shared == "true", sent)


class Failures(Runs):
    def test_a_diverging_run_stops_and_says_which_checkpoint_is_no_good(self):
        saved = self.place("saved")
        said = self.refusal(*EXACT, "--steps", "9", "--lr", "1e30", "--checkpoints", saved, "--save-every", "1",
                            "--checkpoint.asynchronous", "false")
        self.assertIn("the run diverges: at step 2 the loss is ", said)
        self.assertIn(f"no good checkpoint is left: {saved}/step-00000001 holds what diverged", said)

    def test_a_diverging_rank_process_says_the_same_once(self):
        for engine in ("inproc", "tcp"):
            said = self.refusal(*EXACT, "--steps", "9", "--lr", "1e30", "--ranks", "2", "--engine", engine)
            self.assertIn("the run diverges: at step 2 ", said)

    def save(self):
        """A run that ended at step 2 of 4, and what resumes it."""
        saved = self.place("saved")
        run = [*MODEL, "--steps", "4"]
        self.result(*run, "--checkpoints", saved, "--save-every", "2")
        shutil.rmtree(os.path.join(saved, "step-00000004"))
        return os.path.join(saved, "step-00000002"), [*run, "--resume", saved]

    def test_a_corrupt_checkpoint_is_refused_by_the_name_of_its_file(self):
        folder, run = self.save()
        for name in sorted(os.listdir(folder)):
            with self.subTest(file=name):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    whole = file.read()
                broken = bytearray(whole)
                broken[len(whole) // 2] ^= 0x10
                for content in (bytes(broken), whole[:-2]):
                    with open(path, "wb") as file:
                        file.write(content)
                    said = self.refusal(*run)
                    self.assertIn(folder, said)
                    if name != "manifest.json":  # which may name another file then
                        self.assertIn(path, said)
                os.remove(path)
                self.assertIn(path, self.refusal(*run))
                with open(path, "wb") as file:
                    file.write(whole)
        self.result(*run)

    def test_another_run_than_the_saved_one_is_refused_with_both_values(self):
        folder, run = self.save()
        said = self.refusal(*run, "--optimizer.beta1", "0.8")
        self.assertIn("optimizer.beta1 = 0.9, the run that resumes has 0.8", said)
        absent = self.place("absent")
        self.assertIn(absent, self.refusal(*MODEL, "--resume", absent))
        said = self.refusal(*MODEL, "--steps", "4", "--checkpoints", os.path.dirname(folder))
        self.assertIn(f"{folder}: is of another run", said)

    def test_a_full_disk_leaves_the_old_checkpoint(self):
        # 2.6 million parameters and no moments: 10 MB; one checkpoint fits and the second does not.
        disk = self.place("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], capture_output=True,
                                 text=True)
        if mounted.returncode != 0:
            self.skipTest(f"a small disk cannot be mounted: {mounted.stderr.strip() or mounted.stdout.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", disk], check=True)
        run = [*EXACT, "--optimizer", "sgd", "--optimizer.momentum", "0", "--steps", "8"]
        undisturbed = self.result(*run)["weights_hash"]
        saved = os.path.join(disk, "saved")
        said = self.refusal(*run, "--checkpoints", saved, "--save-every", "3")
        self.assertIn("No space left on device", said)
        self.assertIn(f"the last good checkpoint is {saved}/step-00000003", said)
        self.assertEqual(os.listdir(saved), ["step-00000003"])
        self.assertEqual(self.result(*run, "--resume", saved)["weights_hash"], undisturbed)


if __name__ == "__main__":
    unittest.main()
