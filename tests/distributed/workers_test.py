"""Worker processes against one process: the same bytes, whichever worker has which instructions, and clear ends."""

import json
import os
import signal
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from contextlib import ExitStack

from program import DEMO, PROGRAM, SANITIZED, Worker, butterfly, environment, supported_isas

PROMPT = "ROMEO:\nO, she doth teach the torches"


def shared_out(arguments):
    """The same, so that every worker takes part where the test does not say how: the best split may leave some idle."""
    return arguments if "--split" in arguments else (*arguments, "--split", "uniform")


def generate(*arguments, isa=None, tokens=40, prompt=PROMPT):
    return butterfly("generate", "-m", DEMO, "-p", prompt, "-n", tokens, *shared_out(arguments), isa=isa)


class OneAnswer(unittest.TestCase):
    def setUp(self):
        self.expected = generate("--threads", 1, isa="reference")
        self.assertEqual(self.expected.returncode, 0, self.expected.stderr)

    def test_one_to_four_workers_of_mixed_instruction_sets_write_the_same_bytes(self):
        isas = supported_isas()
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(isa=isas[i % len(isas)])) for i in range(4)]
            for count in (1, 2, 3, 4):
                for split in ("uniform", "balanced"):
                    addresses = ",".join(w.address for w in workers[:count])
                    run = generate("--workers", addresses, "--split", split)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertEqual(run.stdout, self.expected.stdout, (count, split))
            for worker in workers:
                self.assertEqual(worker.terminate(), 0)

    def test_sampling_with_a_seed_does_not_see_the_split(self):
        options = ("--temp", 0.9, "--top-k", 50, "--top-p", 0.95, "--seed", 7, "--prefill-chunk", 5)
        one = generate(*options, isa="reference")
        other_seed = generate(*options[:-4], "--seed", 8)
        self.assertNotEqual(one.stdout, other_seed.stdout)
        with Worker() as a, Worker() as b:
            two = generate(*options, "--workers", f"{a.address},{b.address}")
        self.assertEqual(one.stdout, two.stdout)
        self.assertEqual(one.stdout, generate(*options, "--nodes", 3).stdout)

    def test_more_workers_than_layers_stand_by_and_it_is_said(self):
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker()) for _ in range(6)]
            run = generate("--workers", ",".join(w.address for w in workers))
        self.assertEqual(run.stdout, self.expected.stdout)
        self.assertIn(b"stands by", run.stderr)

    def test_a_worker_takes_weights_from_its_folder_by_content(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "deep"))
            shutil.copy(DEMO, os.path.join(folder, "deep", "another name.gguf"))
            with Worker("--model-dir", folder) as a, Worker() as b:
                run = generate("--workers", f"{a.address},{b.address}", "--json")
                self.assertEqual(run.returncode, 0, run.stderr)
                a.process.kill()
                log = a.process.stderr.read().decode()
        self.assertIn("another name.gguf", log)
        report = json.loads(run.stdout)
        self.assertEqual(report["text"].encode() + b"\n", self.expected.stdout)
        self.assertGreater(report["wire_bytes_per_token"], 0)
        self.assertEqual([n["first_layer"] for n in report["nodes"]][0], 0)


class DefaultSplit(unittest.TestCase):
    """Without --split the plan is the one that is predicted best, and who has no work is told why."""

    def text(self, *arguments):
        return butterfly("generate", "-m", DEMO, "-p", PROMPT, "-n", 24, *arguments)

    def test_workers_that_are_left_idle_are_named_with_the_reason(self):
        with Worker() as a, Worker() as b, Worker() as c:
            run = self.text("--workers", f"{a.address},{b.address},{c.address}", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        self.assertEqual(report["split"], "auto")
        self.assertEqual(report["text"].encode() + b"\n", self.text("--threads", 1).stdout)
        idle = {a.address, b.address, c.address} - {node["name"] for node in report["nodes"]}
        lines = [line for line in run.stderr.decode().splitlines() if " by: " in line]
        self.assertEqual(len(lines), 1 if idle else 0, run.stderr)  # a disturbed machine may find a use for all
        if not idle:
            return
        for address in idle:
            self.assertIn(address, lines[0])
        self.assertIn("a token is predicted to take", lines[0])

    def test_nodes_of_one_process_are_alike_and_it_is_said(self):
        run = self.text("--nodes", 3, "--threads", 1, "--json")
        self.assertEqual(json.loads(run.stdout)["split"], "uniform")
        self.assertIn(b"split uniform, as the nodes of one process are alike", run.stderr)
        self.assertNotIn(b"split", self.text("--threads", 1, "--json").stderr.replace(b"| split", b""))


class Ends(unittest.TestCase):
    def one_sentence(self, run, *words):
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(run.stdout, b"")
        lines = [line for line in run.stderr.decode().splitlines() if line.startswith("butterfly: ")]
        self.assertEqual(len(lines), 1, run.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_an_unreachable_worker_is_named(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % unused.getsockname()[1]
            self.one_sentence(generate("--workers", address), address)

    def test_a_port_in_use_is_said(self):
        with Worker() as worker:
            self.one_sentence(butterfly("worker", "--listen", worker.address), worker.address)

    def test_an_address_beyond_loopback_is_refused(self):
        self.one_sentence(butterfly("worker", "--listen", "0.0.0.0:0"), "loopback")

    def test_a_peer_that_is_no_worker_is_said_and_does_not_hang(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(8)
            begin = time.monotonic()
            run = generate("--workers", "127.0.0.1:%d" % server.getsockname()[1])
            self.one_sentence(run, "127.0.0.1")
            self.assertLess(time.monotonic() - begin, 30)

    def test_garbage_and_silence_on_the_port_delay_nobody(self):
        with Worker() as worker, ExitStack() as stack:
            host, port = worker.address.split(":")
            for _ in range(20):
                peer = stack.enter_context(socket.create_connection((host, int(port))))
                peer.send(os.urandom(200))
            for _ in range(5):
                stack.enter_context(socket.create_connection((host, int(port))))
            begin = time.monotonic()
            run = generate("--workers", worker.address)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertLess(time.monotonic() - begin, 10)

    def test_a_second_coordinator_is_told_who_is_there(self):
        with Worker() as worker:
            running = subprocess.Popen([PROGRAM, "generate", "-m", DEMO, "-p", PROMPT, "-n", "450", "--ignore-end",
                                        "--workers", worker.address], env=environment(),
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            running.stdout.read(1)
            os.kill(running.pid, signal.SIGSTOP)
            self.one_sentence(generate("--workers", worker.address), worker.address)
            os.kill(running.pid, signal.SIGCONT)
            running.communicate(timeout=60)
            self.assertEqual(generate("--workers", worker.address).returncode, 0)

    def test_interrupts_end_cleanly(self):
        for stop in (signal.SIGINT, signal.SIGTERM):
            with Worker() as worker:
                running = subprocess.Popen([PROGRAM, "generate", "-m", DEMO, "-p", PROMPT, "-n", "450", "--ignore-end",
                                            "--workers", worker.address], env=environment("reference"),
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                running.stdout.read(1)
                running.send_signal(stop)
                _, errors = running.communicate(timeout=15)
                self.assertEqual(running.returncode, 130, errors)
                self.assertIn("cancelled", errors.decode())
                self.assertEqual(generate("--workers", worker.address).returncode, 0)
                worker.process.send_signal(stop)
                self.assertEqual(worker.process.wait(timeout=10), 0)


class TensorGroups(unittest.TestCase):
    """Several workers compute one stage together, each some slices of it: the bytes of one process."""

    def slices(self, report):
        return [(node["first_slice"], node["last_slice"]) for node in report["nodes"]]

    def test_two_to_eight_workers_of_mixed_instruction_sets_write_the_same_bytes_in_every_type(self):
        isas = supported_isas()
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            workers = [stack.enter_context(Worker(isa=isas[i % len(isas)])) for i in range(8)]
            for kind in ("f32", "q8_0", "q4_0"):
                model = os.path.join(folder, kind + ".gguf")
                converted = butterfly("convert", DEMO, model, "--type", kind)
                self.assertEqual(converted.returncode, 0, converted.stderr)
                text = ("generate", "-m", model, "-p", PROMPT, "-n", 24, "--ignore-end", "--prefill-chunk", 16)
                expected = butterfly(*text, "--threads", 1, isa="reference").stdout
                for count in (2, 3, 4, 5, 8):  # the demo has four key/value heads
                    addresses = ",".join(w.address for w in workers[:count])
                    run = butterfly(*text, "--workers", addresses, "--split", "tensor")
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertEqual(run.stdout, expected, (kind, count, run.stderr))
                run = butterfly(*text, "--workers", ",".join(w.address for w in workers[:4]), "--split", "hybrid")
                self.assertEqual(run.stdout, expected, (kind, "hybrid", run.stderr))
                for count in (2, 3, 8):
                    threads = butterfly(*text, "--nodes", count, "--threads", 1, "--split", "tensor")
                    self.assertEqual(threads.stdout, expected, (kind, "threads", count, threads.stderr))
            for worker in workers:
                self.assertEqual(worker.terminate(), 0)

    def test_the_report_names_slices_and_what_sums_travel_through(self):
        with Worker() as a, Worker() as b, Worker("--no-shared-memory") as c:
            shared = json.loads(generate("--workers", f"{a.address},{b.address}", "--split", "tensor", "--json").stdout)
            apart = json.loads(generate("--workers", f"{a.address},{c.address}", "--split", "tensor", "--json").stdout)
            both = json.loads(generate("--workers", f"{a.address},{b.address},{c.address}", "--split", "tensor",
                                       "--json").stdout)
        for report, nodes in ((shared, 2), (apart, 2), (both, 3)):
            slices = self.slices(report)
            self.assertEqual(len(slices), nodes)
            self.assertEqual([first for first, _ in slices], [0] + [last + 1 for _, last in slices[:-1]])
            self.assertEqual(slices[-1][1], 31)
            self.assertEqual({(n["first_layer"], n["last_layer"]) for n in report["nodes"]}, {(0, 4)})
        self.assertEqual([n["exchange"] for n in shared["nodes"]], ["shared memory"] * 2)
        self.assertEqual([n["exchange"] for n in apart["nodes"]], ["channels"] * 2)
        self.assertEqual([n["exchange"] for n in both["nodes"]], ["shared memory and channels"] * 2 + ["channels"])
        self.assertGreater(apart["wire_bytes_per_token"], shared["wire_bytes_per_token"])

    @unittest.skipIf(SANITIZED, "SKIPPED: a sanitizer's own memory is many times what is counted here")
    def test_a_member_receives_and_holds_its_share_and_never_more(self):
        def peak_mib(worker):
            with open(f"/proc/{worker.process.pid}/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            model = os.path.join(folder, "model.gguf")
            made = butterfly("convert", "--random", "gpt2-124m", model, "--type", "f16")
            self.assertEqual(made.returncode, 0, made.stderr)
            workers = [stack.enter_context(Worker()) for _ in range(8)]
            addresses = ",".join(w.address for w in workers)
            first = generate("--workers", addresses, "--split", "tensor", tokens=1)  # whatever else a worker allocates
            self.assertEqual(first.returncode, 0, first.stderr)
            for worker in workers:
                with open(f"/proc/{worker.process.pid}/clear_refs", "w") as peak:
                    peak.write("5")
            before = [peak_mib(worker) for worker in workers]
            run = butterfly("generate", "-m", model, "-p", "a b", "-n", 2, "--ignore-end", "--workers", addresses,
                            "--split", "tensor", "--json")
            self.assertEqual(run.returncode, 0, run.stderr)
            report = json.loads(run.stdout)
            weights_mib = os.path.getsize(model) / 2**20
            positions_mib = 1024 * 768 * 4 / 2**20  # which every member holds whole
            self.assertEqual(len(report["nodes"]), 8)
            self.assertAlmostEqual(report["epochs"][0]["weight_bytes"] / 2**20, weights_mib + 7 * positions_mib,
                                   delta=0.02 * weights_mib)
            for worker, idle in zip(workers, before):
                # A token table alone has 74 MiB, an eighth of everything 30.
                self.assertLess(peak_mib(worker) - idle, weights_mib / 8 + positions_mib + 24)

    def test_nothing_is_left_in_the_file_system_for_shared_memory(self):
        before = set(os.listdir("/dev/shm"))
        with Worker() as a, Worker() as b:
            run = generate("--workers", f"{a.address},{b.address}", "--split", "tensor")
            self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([name for name in set(os.listdir("/dev/shm")) - before if "butterfly" in name], [])


class ScatteredLayers(unittest.TestCase):
    """A node may have layers that do not follow each other: steps come back to it, the bytes are those of one process."""

    TEXT = ("-m", DEMO, "-p", PROMPT, "-n", 40, "--ignore-end", "--prefill-chunk", 16)

    def layers(self, report):
        nodes = {}
        for node in report["nodes"]:
            nodes.setdefault(node["name"], []).append((node["first_layer"], node["last_layer"]))
        return sorted(nodes.values())

    def test_greedy_and_custom_plans_write_the_same_bytes_over_workers_and_threads(self):
        expected = butterfly("generate", *self.TEXT, "--threads", 1, isa="reference").stdout
        isas = supported_isas()
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            workers = [stack.enter_context(Worker(isa=isas[i % len(isas)])) for i in range(3)]
            for count in (2, 3):
                addresses = [w.address for w in workers[:count]]
                back_and_forth = os.path.join(folder, f"{count}.plan")
                with open(back_and_forth, "w") as file:
                    file.writelines(f"{addresses[layer % count]} {layer}-{layer}\n" for layer in range(5))
                for split in (("greedy",), ("custom", "--custom", back_and_forth)):
                    run = butterfly("generate", *self.TEXT, "--workers", ",".join(addresses), "--split", *split)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertEqual(run.stdout, expected, (count, split, run.stderr))
                run = butterfly("generate", *self.TEXT, "--nodes", count, "--threads", 1, "--split", "greedy", "--json")
                self.assertEqual(run.returncode, 0, run.stderr)
                report = json.loads(run.stdout)
                self.assertEqual(report["text"].encode() + b"\n", expected)
                self.assertGreater(max(len(layers) for layers in self.layers(report)), 1, "nothing was scattered")
            for worker in workers:
                self.assertEqual(worker.terminate(), 0)


class LossyWire(unittest.TestCase):
    def test_rounded_activations_are_smaller_labelled_and_the_same_on_threads_and_workers(self):
        with Worker() as a, Worker() as b:
            where = ["--workers", f"{a.address},{b.address}"]
            exact = json.loads(generate(*where, "--json").stdout)
            self.assertFalse(exact["lossy"])
            for wire_type, at_most in (("f16", 0.95), ("q8_0", 0.91)):
                run = generate(*where, "--json", "--wire-type", wire_type)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertIn(f"rounded to {wire_type}".encode(), run.stderr)
                rounded = json.loads(run.stdout)
                self.assertTrue(rounded["lossy"])
                self.assertLess(rounded["wire_bytes_per_token"], at_most * exact["wire_bytes_per_token"])
                threads = json.loads(generate("--nodes", "2", "--json", "--wire-type", wire_type).stdout)
                self.assertEqual(threads["tokens"], rounded["tokens"])


class LosslessWire(unittest.TestCase):
    def test_packed_payloads_are_smaller_labelled_and_the_text_is_the_same(self):
        story = PROMPT + " and then" * 60  # rows enough for payloads that are worth packing
        with Worker() as a, Worker() as b:
            where = ["--workers", f"{a.address},{b.address}", "--json"]
            exact = json.loads(generate(*where, prompt=story).stdout)
            self.assertEqual(exact["compression"]["codec"], "none")
            self.assertEqual(exact["compression"]["wire_bytes_before"], exact["compression"]["wire_bytes_after"])
            for mode in ("lz4", "zstd", "auto"):
                run = generate(*where, "--compress", mode, prompt=story)
                self.assertEqual(run.returncode, 0, run.stderr)
                packed = json.loads(run.stdout)
                self.assertEqual(packed["tokens"], exact["tokens"])
                self.assertFalse(packed["lossy"])
                self.assertEqual(packed["compression"]["mode"], mode)
                # The last step, which only frees the cache, is still on its way when the bytes are counted, or not.
                self.assertAlmostEqual(packed["compression"]["wire_bytes_before"], exact["compression"]["wire_bytes_after"], delta=300)
                if mode == "auto":
                    continue  # what it finds on this machine is its own affair
                self.assertEqual(packed["compression"]["codec"], mode)
                self.assertLess(packed["compression"]["wire_bytes_after"], packed["compression"]["wire_bytes_before"])
                self.assertIn(f"packed by {mode}".encode(), run.stderr)


class Failover(unittest.TestCase):
    """Workers die, leave, come back and join while a text is written: the text is the same."""

    SAMPLED = ["--ignore-end", "--temp", "0.8", "--seed", "5"]

    @classmethod
    def setUpClass(cls):
        # Long enough to be struck while it is written, also where nothing slows the program down.
        for tokens in (100, 400):
            begin = time.monotonic()
            cls.text = ["-m", DEMO, "-p", PROMPT, "-n", str(tokens), *cls.SAMPLED]
            cls.expected = butterfly("generate", *cls.text).stdout
            if time.monotonic() - begin > 2:
                break

    def start(self, *arguments):
        """A run that has written its first bytes."""
        running = subprocess.Popen([PROGRAM, "generate", *self.text, *shared_out(arguments)],
                                   env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self.first = running.stdout.read(4)
        return running

    def finish(self, running):
        rest, errors = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 0, errors)
        self.assertEqual(self.first + rest, self.expected, errors)
        return errors.decode()

    def test_a_killed_worker_is_named_and_the_others_finish_the_text(self):
        for victim in range(3):
            with Worker() as a, Worker() as b, Worker() as c:
                workers = [a, b, c]
                running = self.start("--workers", ",".join(w.address for w in workers))
                workers[victim].process.send_signal(signal.SIGKILL)
                errors = self.finish(running)
                self.assertIn(workers[victim].address, errors)
                self.assertIn("epoch 2: 2 workers", errors)

    def test_a_cache_in_q8_0_is_filled_again_with_the_same_bits(self):
        cached = ("--kv-type", "q8_0")
        self.expected = butterfly("generate", *self.text, *cached).stdout
        for split in ("uniform", "tensor"):
            with Worker() as a, Worker() as b, Worker() as c:
                running = self.start("--workers", ",".join(w.address for w in (a, b, c)), "--split", split, *cached)
                b.process.send_signal(signal.SIGKILL)
                self.assertIn("epoch 2: 2 workers", self.finish(running))

    def test_a_killed_member_of_a_tensor_group_is_named_and_the_others_finish_the_text(self):
        for victim, options in ((0, ()), (1, ()), (2, ("--no-shared-memory",))):
            with Worker(*options) as a, Worker(*options) as b, Worker(*options) as c:
                workers = [a, b, c]
                running = self.start("--workers", ",".join(w.address for w in workers), "--split", "tensor")
                workers[victim].process.send_signal(signal.SIGKILL)
                errors = self.finish(running)
                self.assertIn(workers[victim].address, errors)
                self.assertIn("slices", errors)
                self.assertIn("epoch 2: 2 workers", errors)

    def test_a_killed_worker_with_scattered_layers_is_named_and_the_others_finish_the_text(self):
        for victim in range(3):
            with Worker() as a, Worker() as b, Worker() as c:
                workers = [a, b, c]
                running = self.start("--workers", ",".join(w.address for w in workers), "--split", "greedy")
                workers[victim].process.send_signal(signal.SIGKILL)
                errors = self.finish(running)
                self.assertIn(workers[victim].address, errors)
                self.assertIn("epoch 2: 2 workers", errors)

    def test_two_of_four_may_die_at_once(self):
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker()) for _ in range(4)]
            running = self.start("--workers", ",".join(w.address for w in workers))
            workers[0].process.send_signal(signal.SIGKILL)
            workers[2].process.send_signal(signal.SIGKILL)
            self.assertIn("2 workers, ready", self.finish(running))

    def test_a_stopped_worker_is_given_up_and_taken_back_when_it_goes_on(self):
        with Worker() as a, Worker() as b:
            running = self.start("--workers", f"{a.address},{b.address}", "--dead-after", "300")
            b.process.send_signal(signal.SIGSTOP)
            time.sleep(0.6)
            b.process.send_signal(signal.SIGCONT)
            self.assertIn("said nothing for 300 ms", self.finish(running))

    def test_a_worker_that_is_asked_to_end_finishes_its_share_first(self):
        with Worker() as a, Worker() as b:
            running = self.start("--workers", f"{a.address},{b.address}")
            self.assertEqual(b.terminate(), 0)
            self.assertIn(f"{b.address} leaves", self.finish(running))

    def test_a_worker_joins_while_a_text_is_written(self):
        with Worker() as a:
            running = self.start("--workers", a.address, "--join-at", "127.0.0.1:0")
            line = b""
            while b"workers may join at" not in line:
                line = running.stderr.readline()
                self.assertTrue(line)
            with Worker("--join", line.split()[-1].decode()) as b:
                self.assertIn(f"worker {b.address} joined", self.finish(running))

    def test_status_tells_who_works_on_what(self):
        with Worker() as a, Worker() as b:
            running = self.start("--workers", f"{a.address},{b.address}", "--join-at", "127.0.0.1:0")
            line = b""
            while b"workers may join at" not in line:
                line = running.stderr.readline()
                self.assertTrue(line)
            os.kill(running.pid, signal.SIGSTOP)  # so that it is still there when the answers come
            workers = json.loads(butterfly("cluster", "status", a.address, b.address, "--links", "--json").stdout)
            os.kill(running.pid, signal.SIGCONT)
            self.finish(running)
            self.assertEqual([w["address"] for w in workers], [a.address, b.address])
            self.assertEqual([[(s["first_layer"], s["last_layer"]) for s in w["stages"]] for w in workers], [[(0, 1)], [(2, 4)]])
            self.assertGreater(workers[0]["steps"], 0)
            self.assertGreater(workers[0]["links"][0]["gb_per_s"], 0)
            free = butterfly("cluster", "status", a.address, text=True)
            self.assertEqual(free.returncode, 0, free.stderr)
            self.assertIn("free", free.stdout)
            b.process.kill()
            b.process.wait()
            gone = butterfly("cluster", "status", f"{a.address},{b.address}", text=True)
            self.assertEqual(gone.returncode, 2)
            self.assertIn("does not answer", gone.stdout)

    def test_the_last_worker_is_waited_for_and_then_missed(self):
        with Worker() as a:
            running = self.start("--workers", a.address, "--recover-within", "1")
            a.process.send_signal(signal.SIGKILL)
            _, errors = running.communicate(timeout=30)
            self.assertEqual(running.returncode, 2, errors)
            self.assertIn("no worker is left; no other worker came within 1 s", errors.decode())

    def test_an_interrupt_wins_over_waiting_for_a_worker(self):
        with Worker() as a:
            running = self.start("--workers", a.address)
            a.process.send_signal(signal.SIGKILL)
            while b"waiting for a worker" not in running.stderr.readline():
                pass
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=15)
            self.assertEqual(running.returncode, 130)

    # Fails when survivors do not give what they have on disk: the coordinator would send it again.
    def test_weights_come_from_a_worker_that_has_the_file(self):
        folder = os.path.dirname(DEMO)
        with Worker("--model-dir", folder) as a, Worker("--model-dir", folder) as b, Worker() as c:
            running = self.start("--workers", f"{a.address},{b.address},{c.address}")
            b.process.kill()
            errors = self.finish(running)
            self.assertRegex(errors, r"epoch 2: 2 workers, .* 0 B of weights sent")

    def test_workers_keep_their_weights_for_the_next_coordinator(self):
        with Worker() as a, Worker() as b:
            addresses = f"{a.address},{b.address}"
            self.assertNotIn(" 0 B of weights sent", generate("--workers", addresses).stderr.decode())
            self.assertIn(" 0 B of weights sent", generate("--workers", addresses).stderr.decode())


if __name__ == "__main__":
    unittest.main()
