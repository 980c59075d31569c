#!/usr/bin/env python3
"""butterfly train --workers: ranks on worker processes against one process: the same weights to the bit, also when a
worker dies on the way; who does not take part says so; credentials."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from contextlib import ExitStack

from program import PROGRAM, ROOT, TIMEOUT_S, Worker, butterfly, environment, supported_isas
from security_test import Admission, Cluster

TEXT = os.path.join(ROOT, "tests/golden/bpe_text.txt")
SMALL = ["--model", "tinytransformer-tiny", "--seq", "8", "--batch", "8", "--micro-batch", "2", "--threads", "1",
         "--deterministic", "--lr", "2e-3", "--schedule", "constant", "--json"]
MARKOV = ["--data", "synthetic:markov"]


def train(*arguments, isa=None):
    return butterfly("train", *SMALL, *arguments, text=True, isa=isa)


def addresses(workers):
    return ",".join(worker.address for worker in workers)


class WorkersCase(unittest.TestCase):
    def setUp(self):
        self.stack = ExitStack()
        self.addCleanup(self.stack.close)
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())

    def place(self, name):
        return os.path.join(self.folder, name)

    def workers(self, count, *arguments):
        return [self.stack.enter_context(Worker(*arguments)) for _ in range(count)]

    def tokenizer(self):
        path = self.place("tokenizer.json")
        butterfly("tokenize", "--train", TEXT, "--vocab", "400", "--out", path)
        return path

    def result(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def hash_of(self, *arguments, isa=None):
        result = self.result(train(*arguments, isa=isa))
        self.assertTrue(result["valid"], result)
        return result["weights_hash"]

    def refusal(self, run):
        self.assertEqual(run.returncode, 2, run.stderr)
        lines = [line for line in run.stderr.splitlines() if line.startswith("butterfly: ")]
        self.assertEqual(len(lines), 1, run.stderr)
        return lines[0]


class OneAnswer(WorkersCase):
    def test_two_and_three_workers_give_the_weights_of_one_process_again_and_again(self):
        workers = self.workers(3)
        one = self.hash_of(*MARKOV, "--steps", 16)
        self.assertEqual(one, self.hash_of(*MARKOV, "--steps", 16, "--workers", addresses(workers[:2])))
        self.assertEqual(one, self.hash_of(*MARKOV, "--steps", 16, "--workers", addresses(workers)))
        self.assertEqual(one, self.hash_of(*MARKOV, "--steps", 16, "--workers", addresses(workers[1:]),
                                           "--parallel.speeds", "1,3,2"))
        workers[0].terminate()
        log = workers[0].process.stderr.read().decode()
        for ranks in (3, 4):
            self.assertRegex(log, f"training .*: epoch 1: rank 1 of {ranks}\n(.*shared memory\n)?.*step 1/16, loss [0-9.]+\n")
        self.assertEqual(len(re.findall("training .*: step 16/16, loss [0-9.]+\n.*: the run is over", log)), 2)

    # Fails when rank 0, which gives the others their weights, divides layers without the ranks' speeds.
    def test_uneven_ranks_divide_the_state_alike_in_every_strategy(self):
        workers = self.workers(2)
        one = self.hash_of(*MARKOV, "--steps", 5)
        for strategy in ("zero1", "zero2", "zero3", "pipeline"):
            self.assertEqual(one, self.hash_of(*MARKOV, "--steps", 5, "--workers", addresses(workers), "--parallel",
                                               strategy, "--parallel.speeds", "5,1,1"), strategy)

    # Fails when ranks compute with instructions of their own: what each updates alone would straggler apart.
    def test_all_compute_with_the_instructions_that_every_one_of_them_has(self):
        least = supported_isas()[0]
        run = ["--data", TEXT, "--tokenizer", self.tokenizer(), "--steps", 3]
        one = self.hash_of(*run, isa=least)
        for rank_zero, worker in ((None, least), (least, None)):
            other = self.stack.enter_context(Worker(isa=worker))
            self.assertEqual(one, self.hash_of(*run, "--workers", other.address, isa=rank_zero))

    def test_ranks_on_one_host_read_each_others_gradients_in_memory_unless_one_forbids_it(self):
        two = self.workers(2)
        apart, = self.workers(1, "--no-shared-memory")
        note = "read each other's gradients in shared memory"
        one = self.hash_of(*MARKOV, "--steps", 16)
        for workers, more, shared in ((two, [], True), (two, ["--parallel.shared-memory", "false"], False),
                                      ([two[0], apart], [], False)):
            run = train(*MARKOV, "--steps", 16, "--workers", addresses(workers), *more)
            self.assertEqual(self.result(run)["weights_hash"], one)
            self.assertEqual(note in run.stderr, shared, run.stderr)

    def test_text_becomes_tokens_here_and_a_worker_has_them_below_its_folder_or_receives_them(self):
        tokenizer, tokens = self.tokenizer(), self.place("corpus.tokens")
        butterfly("tokenize", "-m", tokenizer, "--pack", TEXT, "--out", tokens)
        without, = self.workers(1)
        has, = self.workers(1, "--model-dir", self.folder)
        data = ["--data", TEXT, "--tokenizer", tokenizer, "--steps", 16]
        run = train(*data, "--workers", addresses([without, has]))
        self.assertEqual(self.hash_of(*data), self.result(run)["weights_hash"])
        self.assertIn(f"worker {without.address} receives", run.stderr)
        self.assertNotIn(f"worker {has.address} receives", run.stderr)

    def test_a_run_resumes_from_its_one_checkpoint_with_other_ranks_and_a_model_is_continued(self):
        workers = self.workers(2)
        whole = self.hash_of(*MARKOV, "--steps", 16)
        saved = self.place("saved")
        interrupted = ["--checkpoints", saved, "--save-every", 8]
        self.hash_of(*MARKOV, "--steps", 16, *interrupted, "--workers", addresses(workers), "--out", self.place("a.gguf"))
        newest = sorted(os.listdir(saved))[-1]
        for name in os.listdir(saved):
            if name == newest:
                subprocess.run(["rm", "-r", os.path.join(saved, name)], check=True)
        self.assertEqual(whole, self.hash_of(*MARKOV, "--steps", 16, "--resume", saved, "--workers", workers[0].address))
        more = ["--model", self.place("a.gguf"), *MARKOV, "--steps", 8, "--lr", "1e-3"]
        self.assertEqual(self.hash_of(*more), self.hash_of(*more, "--workers", addresses(workers)))


class Faults(WorkersCase):
    def run_until_step(self, workers, step, *arguments, steps=50):
        log = self.place(f"log-{workers[0].process.pid}.jsonl")
        process = subprocess.Popen([PROGRAM, "train", *SMALL, *MARKOV, "--steps", str(steps), "--log-file", log, "--workers",
                                    addresses(workers), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=environment())
        self.addCleanup(process.kill)
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end and process.poll() is None:
            with open(log, encoding="utf-8") if os.path.exists(log) else open(os.devnull, encoding="utf-8") as file:
                if file.read().count('"event":"step"') >= step:
                    break
            time.sleep(0.01)
        return process

    def finish(self, process):
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, stderr)
        return json.loads(stdout), stderr

    def test_a_worker_that_is_killed_or_leaves_is_named_and_the_others_finish_with_the_same_weights(self):
        expected = self.hash_of(*MARKOV, "--steps", 50)
        for stop, why in ((signal.SIGKILL, "is lost"), (signal.SIGTERM, "it was asked to end")):
            workers = self.workers(2)
            process = self.run_until_step(workers, 10)
            workers[1].process.send_signal(stop)
            result, stderr = self.finish(process)
            self.assertTrue(result["valid"], result)
            self.assertEqual(result["weights_hash"], expected)
            self.assertIn(f"rank 2 (worker {workers[1].address}) is lost", stderr)
            self.assertIn(why, stderr)
            workers[1].process.wait(timeout=20)
            self.hash_of(*MARKOV, "--steps", 5, "--workers", workers[0].address)  # who remained is free again

    # Fails when ranks on other machines look for rank 0's checkpoint, or make a continued model's weights up.
    def test_without_copies_rank_zero_gives_all_the_checkpoint_or_the_first_state(self):
        model = self.place("model.gguf")
        self.hash_of(*MARKOV, "--steps", 3, "--out", model)
        expected = {"": self.hash_of(*MARKOV, "--steps", 40), model: self.hash_of("--model", model, *MARKOV, "--steps", 40)}
        for continued, strategy, saves in (("", "zero3", True), (model, "zero2", False)):
            workers = self.workers(2)
            saved = self.place(f"saved-{strategy}-{saves}")
            process = self.run_until_step(workers, 12, "--parallel", strategy, "--mirror", "0", "--checkpoints", saved,
                                          "--save-every", "5" if saves else "1000",
                                          *(["--model", continued] if continued else []), steps=40)
            workers[1].process.kill()
            result, stderr = self.finish(process)
            self.assertEqual(result["weights_hash"], expected[continued], (continued, strategy, saves))
            self.assertIn(f"the run goes back to {saved}" if saves else "the run goes back to its first step", stderr)

    def test_workers_are_free_when_rank_zero_is_killed(self):
        workers = self.workers(2)
        process = self.run_until_step(workers, 5)
        process.kill()
        process.wait()
        end = time.monotonic() + 30
        run = train(*MARKOV, "--steps", 5, "--workers", addresses(workers))
        while run.returncode != 0 and time.monotonic() < end:
            run = train(*MARKOV, "--steps", 5, "--workers", addresses(workers))
        self.result(run)


class Joins(WorkersCase):
    def start(self, *arguments):
        process = subprocess.Popen([PROGRAM, "train", *SMALL, *MARKOV, *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def wait_for(self, process, words):
        """The line of stderr that has them."""
        for line in process.stderr:
            if words in line:
                return line
        self.fail(f"{words} was not said")

    def end(self, process):
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, stderr)
        return stdout

    def free_port(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    # Fails when a newcomer's state is not that of the others, or a step is lost or done twice.
    def test_ranks_that_join_leave_and_come_back_are_not_seen_in_the_weights(self):
        expected = self.hash_of(*MARKOV, "--steps", 120)
        run = ["--steps", "120", "--parallel", "zero3", "--rendezvous", f"127.0.0.1:{self.free_port()}", "--nnodes", "1:3"]
        leader = self.start(*run)
        self.wait_for(leader, "workers may join at")
        first, second = self.start(*run), self.start(*run)
        for _ in range(2):
            self.wait_for(leader, "which joins")
        first.kill()
        self.wait_for(leader, "is lost")
        third = self.start(*run)
        self.wait_for(leader, "which joins")
        result = json.loads(self.end(leader))
        self.assertTrue(result["valid"], result)
        self.assertEqual(result["weights_hash"], expected)
        self.assertEqual(len(result["ranks"]), 3)
        self.assertEqual([self.end(second), self.end(third)], ["", ""])

    def test_no_more_workers_join_than_there_are_micro_batches(self):
        process = self.start("--steps", "60", "--join-at", "127.0.0.1:0", "--nnodes", "2:8", "--batch", "4")
        door = self.wait_for(process, "workers may join at").split()[-1]
        self.workers(2, "--join", door)
        self.assertEqual(len(json.loads(self.end(process))["ranks"]), 2)

    def test_processes_that_meet_are_one_run_and_one_of_them_tells_of_it(self):
        expected = self.hash_of(*MARKOV, "--steps", 16)
        meeting = ["--steps", "16", "--rendezvous", f"127.0.0.1:{self.free_port()}", "--nnodes", "3"]
        told = [text for text in map(self.end, [self.start(*meeting) for _ in range(3)]) if text]
        self.assertEqual(len(told), 1)
        self.assertEqual(json.loads(told[0])["weights_hash"], expected)
        self.assertEqual(len(json.loads(told[0])["ranks"]), 3)

    def test_what_is_said_of_ranks_that_nobody_knows_yet_is_refused(self):
        door = ["--join-at", "127.0.0.1:0"]
        for wrong, words in ((["--nnodes", "2"], "says where ranks meet"), ([*door, "--nnodes", "3:2"], "1 <= MIN <= MAX"),
                             ([*door, "--ranks", "2"], "parallel.nnodes says how many"),
                             ([*door, "--parallel.speeds", "1"], "known before the run begins"),
                             ([*door, "--rendezvous", "127.0.0.1:1"], "all ranks meet there"),
                             (["--rendezvous", "192.0.2.1:7000"], "loopback")):
            self.assertIn(words, self.refusal(train(*MARKOV, *wrong)))


class Refusals(WorkersCase):
    def test_a_worker_that_does_not_train_says_so(self):
        worker, = self.workers(1, "--no-train")
        said = self.refusal(train(*MARKOV, "--steps", 5, "--workers", worker.address))
        self.assertIn(f"worker {worker.address} does not train", said)

    def test_a_worker_receives_no_more_tokens_than_it_has_memory_for(self):
        worker, = self.workers(1, "--memory", "1K")
        said = self.refusal(train("--data", TEXT, "--tokenizer", self.tokenizer(), "--workers", worker.address))
        self.assertIn(f"worker {worker.address}: the tokens of the run have", said)
        self.assertIn("of the 1024 that this worker offers are left", said)

    def test_workers_are_asked_before_a_strategy_is_chosen(self):
        auto = [*MARKOV, "--steps", 4, "--parallel", "auto"]
        run = train(*auto, "--workers", self.workers(1)[0].address)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("asking 1 worker for speed and links", run.stderr)
        self.assertRegex(run.stderr, r"(?m)^strategy +(ddp|zero1|shard_grad_op|full_shard|pipeline): it fits")
        self.assertNotIn("taken to be like this one", run.stderr)
        self.assertGreater(json.loads(run.stdout)["predicted_step_s"], 0)
        self.assertIn("127.0.0.1:1", self.refusal(train(*auto, "--workers", "127.0.0.1:1")))

    def test_workers_that_know_nobody_are_asked_too(self):
        """Without credentials none of them connects to another one for a program that it does not know."""
        workers = ",".join(worker.address for worker in self.workers(2, "--insecure"))
        run = train(*MARKOV, "--steps", 4, "--parallel", "auto", "--insecure", "--workers", workers)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("each link between workers is taken to be like the slower one", run.stderr)
        self.assertGreater(json.loads(run.stdout)["predicted_step_s"], 0)

    def test_one_sentence_for_what_cannot_be(self):
        worker, = self.workers(1)
        self.assertIn("2 addresses, 1 of them different",
                      self.refusal(train(*MARKOV, "--workers", f"{worker.address},{worker.address}")))
        self.assertIn("parallel.ranks is 5, 1 workers and this process are 2",
                      self.refusal(train(*MARKOV, "--workers", worker.address, "--ranks", 5)))
        self.assertIn("127.0.0.1:1", self.refusal(train(*MARKOV, "--workers", "127.0.0.1:1")))
        self.assertIn("loopback", self.refusal(train(*MARKOV, "--workers", "192.0.2.1:7000")))

    def test_with_credentials_members_of_the_cluster_train_and_strangers_do_not(self):
        cluster = Cluster(self.place("cluster"))
        with Admission(cluster.coordinator) as admission:
            self.assertEqual(cluster.enroll("worker-a", admission.address, cluster.token()).returncode, 0)
            self.assertEqual(cluster.enroll("worker-b", admission.address, cluster.token()).returncode, 0)
        workers = [self.stack.enter_context(Worker("--credentials", cluster.member(name)))
                   for name in ("worker-a", "worker-b")]
        one = self.hash_of(*MARKOV, "--steps", 16)
        both = ["--workers", addresses(workers)]
        self.assertEqual(one, self.hash_of(*MARKOV, "--steps", 16, *both, "--credentials", cluster.coordinator))
        self.assertIn(workers[0].address, self.refusal(train(*MARKOV, "--steps", 5, *both)))


if __name__ == "__main__":
    unittest.main()
