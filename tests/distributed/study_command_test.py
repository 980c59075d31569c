#!/usr/bin/env python3
"""butterfly study as a user meets it: runs, reports, comparisons, Ctrl-C, bad input."""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from program import DEMO, PROGRAM, ROOT, TIMEOUT_S, Worker, butterfly, environment

sys.path.insert(0, os.path.join(ROOT, "tools"))
from check_formats import complaint, finite_json, schema_of, study_files  # noqa: E402

GENERATE = ["generate", "-m", DEMO, "-p", "ROMEO:", "-n", "60", "-q"]
TRAIN = ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--steps", "30", "--seq", "32",
         "--batch", "2", "--log", "silent"]
FILES = ["performance_summary_report.md", "report.html", "report.json", "operators.csv", "trace.json", "folded.txt",
         "flops_analysis/flops_profile.json", "flops_analysis/computational_intensity.json", "study.json"]


def study(*arguments):
    return butterfly("study", *arguments, text=True)


def load(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


def fields(message):
    """Of a protobuf message: number and value, as bytes or as the integer that it has."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7)
        size = varint() if size is None else size
        yield tag >> 3, message[at:at + size]
        at += size


def scalars_of(path):
    """Of a file of TensorBoard's events: tag to a list of step and value."""
    with open(path, "rb") as file:
        data = file.read()
    found, at = {}, 0
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        event = dict(fields(data[at + 12:at + 12 + size]))
        at += 16 + size
        for number, value in fields(event.get(5, b"")):
            scalar = dict(fields(value))
            assert number == 1
            tag = scalar[1].decode()
            found.setdefault(tag, []).append((event.get(2, 0), struct.unpack("<f", scalar[2])[0]))
    return found


class StudyTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_study(self, name, command, *options):
        run = study("run", "-o", self.path(name), *options, "--", *command)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run, load(self.path(name), "report.json")

    def check_formats(self, name):
        for path, schema in study_files(self.path(name)):
            self.assertIsNone(complaint(schema_of(schema), finite_json(path)), path)

    def test_a_file_that_breaks_its_format_is_told(self):
        span = {"name": "qkv", "cat": "operation", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 0, "args": {"number": 1}}
        trace = {"displayTimeUnit": "ms", "traceEvents": [span]}
        schema = schema_of("trace_events")
        self.assertIsNone(complaint(schema, trace))
        for broken in ({"dur": -1.0}, {"ph": "B"}, {"pid": True}, {"ts": "1"}, {"args": {"number": 1, "colour": 2}}):
            trace["traceEvents"] = [span, {**span, **broken}]
            self.assertIn("traceEvents[1]", complaint(schema, trace) or "", broken)

    def check_sums(self, report):
        """Phases are all of the wall time, and no operation is longer than its track."""
        for work in report["workloads"]:
            self.assertGreater(work["step_s"]["count"], 0)
            for track in work["tracks"]:
                phases = sum(phase["seconds"] for phase in track["phases"])
                self.assertAlmostEqual(phases, track["wall_s"], delta=0.02 * track["wall_s"], msg=track["name"])
                parts = sum(track[part] for part in ("busy_s", "communication_exposed_s", "wait_s", "idle_s"))
                self.assertAlmostEqual(parts, track["wall_s"], delta=0.02 * track["wall_s"], msg=track["name"])
            self.assertLessEqual(sum(one["share"] for one in work["operators"] if one["kind"] == "matmul"), 1.0)

    def test_generate_has_its_own_output_and_a_report_beside_it(self):
        plain = butterfly(*GENERATE, text=True)
        run, report = self.run_study("one", GENERATE)
        self.assertIn(plain.stdout, run.stderr)
        self.assertTrue(run.stdout.startswith("Performance of butterfly generate"), run.stdout)
        self.assertEqual([work["kind"] for work in report["workloads"]], ["prefill", "decode"])
        decode = report["workloads"][1]
        self.assertEqual(decode["step_s"]["count"], 49)
        self.assertGreater(decode["matmul_share"], 0.0)
        self.assertAlmostEqual(decode["efficiency"]["tokens_per_step"], 1.0, delta=0.1)
        self.check_sums(report)
        for name in FILES:
            self.assertGreater(os.path.getsize(os.path.join(self.path("one"), name)), 50, name)
        self.check_formats("one")

    def test_workers_are_part_of_it(self):
        with Worker() as one, Worker() as two:
            command = [*GENERATE, "--split", "uniform", "--workers", f"{one.address},{two.address}"]
            _, report = self.run_study("two", command)
        self.assertEqual(len(report["processes"]), 3, report["processes"])
        decode = report["workloads"][-1]
        self.assertGreaterEqual(len(decode["tracks"]), 3)
        self.assertIsNotNone(decode["load_balance_factor"])
        self.assertTrue(any(use["sent_bytes_per_step"] > 0 for use in decode["wire"]))
        self.check_sums(report)

    def test_training_repeats_and_reports_again(self):
        _, report = self.run_study("three", TRAIN, "--repeats", "2")
        self.assertEqual(report["repeats"], 2)
        train = report["workloads"][0]
        self.assertEqual(train["kind"], "train")
        self.assertEqual(train["step_s"]["count"], 40)
        self.check_formats("three")
        self.assertAlmostEqual(train["efficiency"]["tokens_per_step"], 64.0, places=6)
        names = {phase["name"] for track in train["tracks"] for phase in track["phases"]}
        self.assertTrue({"forward", "backward", "optimizer"} <= names, names)
        self.check_sums(report)
        again = study("report", self.path("three"), "--warmup", "5", "--measure", "7", "--json")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(json.loads(again.stdout)["workloads"][0]["step_s"]["count"], 14)
        board = self.path("board")
        self.assertEqual(study("report", self.path("three"), "--tensorboard", board).returncode, 0)
        scalars = scalars_of(os.path.join(board, os.listdir(board)[0]))
        self.assertEqual(len(scalars["steps/train/step_s"]), 20)
        self.assertEqual(scalars["steps/train/step_s"][0][0], 11)  # after ten that are dropped
        now = load(self.path("three"), "report.json")["workloads"][0]
        for path, value in (("step_s/mean", now["step_s"]["mean"]), ("efficiency/mfu", now["efficiency"]["mfu"]),
                            ("tracks/train/wall_s", now["tracks"][0]["wall_s"]),
                            ("operators/qkv, f32/flops",
                             next(one["flops"] for one in now["operators"] if one["name"] == "qkv"))):
            (step, shown), = scalars["workloads/train/" + path]
            self.assertEqual(step, 0)
            self.assertAlmostEqual(shown / value, 1.0, places=5)
        self.assertGreater(len(scalars["timeline/train/resident_bytes"]), 2)
        compared = study("compare", self.path("three"), self.path("three"), "--json")
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertAlmostEqual(json.loads(compared.stdout)["workloads"][0]["speedup"], 1.0)
        self.assertNotEqual(json.loads(compared.stdout)["workloads"][0]["verdict"], "faster")

    def test_a_server_is_ended_with_ctrl_c_and_reported(self):
        command = [PROGRAM, "study", "run", "-o", self.path("four"), "--", "serve", "-m", DEMO, "--listen",
                   "127.0.0.1:0", "--journal", "off"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True, env=environment())
        address = None
        for line in process.stderr:
            if "http://" in line:
                address = line[line.index("http://"):].split()[0].rstrip(".,/")
                break
        self.assertIsNotNone(address)
        address = address.removesuffix("/v1")
        body = json.dumps({"prompt": "ROMEO:", "max_tokens": 30, "temperature": 0}).encode()
        request = urllib.request.Request(address + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            self.assertEqual(answer.status, 200)
        shown = study("watch", address.removeprefix("http://"), "--every", "0.1", "--lines", "2")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(len(shown.stdout.splitlines()), 3, shown.stdout)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.assertIn("Steps: decode", stdout, stderr)
        self.assertEqual(process.returncode, 0, stderr)
        self.check_formats("four")

    def test_collectives_are_estimated_beside_what_they_took(self):
        _, report = self.run_study("ranks", [*TRAIN, "--ranks", "2", "--threads", "1"])
        self.assertIn("the machine's memory", report["workloads"][0]["links_estimated_with"])
        said = study("report", self.path("ranks"), "--json", "--latency-us", "1000", "--gbit-per-s", "1")
        work = json.loads(said.stdout)["workloads"][0]
        self.assertIn("as the command line says", work["links_estimated_with"])
        sums = next(link for link in work["links"] if link["name"] == "all_reduce")
        # Two ranks: 2 messages of half of the bytes each, 1 ms and 0.125 GB/s.
        self.assertAlmostEqual(sums["estimated_s"], sums["messages"] * 2e-3 + sums["bytes"] / 0.125e9, places=6)
        self.assertTrue(0 <= sums["wait_s"] <= sums["seconds"], sums)
        bucket = next(link for link in work["links"] if link["name"] == "reduce_bucket")
        self.assertIsNone(bucket["estimated_s"])  # the codec and its collectives: these are estimated

    def test_more_ranks_and_a_verdict(self):
        def scale(*options):
            command = [word for word in TRAIN if word not in ("--batch", "2")] + ["--batch", "4", "--micro-batch", "2"]
            command[command.index("--steps") + 1] = "8"
            run = study("scale", "-o", self.path("scale"), "--rounds", "1", "--warmup", "1", "--json", *options,
                        "--sizes", "1,2", "--", *command)
            self.assertEqual(run.returncode, 0, run.stderr)
            return json.loads(run.stdout)

        found = scale()
        self.assertEqual([point["size"] for point in found["points"]], [1, 2])
        for point in found["points"]:
            self.assertTrue(point["speedup_least"] <= point["speedup"] <= point["speedup_most"], point)
            self.assertLessEqual(point["efficiency"], point["efficiency_of_cpus"] * 1.0001)
        spoilt = any(point["trust"] == "inconclusive" for point in found["points"])
        self.assertEqual(found["inconclusive"], spoilt)
        run = found["strategies"]
        self.assertEqual(list(run["strategies"]), ["ddp", "zero2", "zero3"])
        self.assertEqual(run["ranks"], 2)
        first, second, third = run["strategies"].values()
        # Of two ranks: half of the gradients there and half of the sums back; zero3 gathers weights twice besides.
        self.assertAlmostEqual(second["sent_bytes_of_each"] / first["sent_bytes_of_each"], 1.0, places=2)
        self.assertAlmostEqual(third["sent_bytes_of_each"] / first["sent_bytes_of_each"], 1.5, places=2)
        shown = [name for name, one in run["strategies"].items() if one["speedup_least"] > 1.0]
        self.assertEqual(run["verdict"], "FSDP" if run["strategy"] in shown else "DDP")
        self.assertIn(f"{run['strategy']} took", run["reason"])
        verdict = found["ddp_or_fsdp"]
        self.assertEqual(verdict["ranks"], 4)  # no work for more than its sequences
        steps = verdict["strategies"]
        # Everything fits: what is fastest, but by a tenth at least, whatever the machine was busy with meanwhile.
        chosen = "ddp"
        for name in ("zero1", "shard_grad_op", "full_shard"):
            chosen = name if steps[name]["step_s"] < 0.9 * steps[chosen]["step_s"] else chosen
        self.assertEqual(verdict["strategy"], chosen)
        self.assertEqual(verdict["verdict"], "DDP" if chosen == "ddp" else "FSDP")
        weights = steps["ddp"]["weight_bytes"]
        self.assertAlmostEqual(steps["full_shard"]["bytes_sent"], 3 * weights * 3 / 4)
        self.assertEqual(steps["full_shard"]["optimizer_bytes"], weights / 2)
        weak = scale("--weak", "--batch-each", "2", "--extrapolate", "8", "--memory", "40MiB", "--gbit-per-s", "1")
        self.assertEqual((weak["ddp_or_fsdp"]["verdict"], weak["ddp_or_fsdp"]["ranks"]), ("FSDP", 8))
        self.assertIn("ddp lacks", weak["ddp_or_fsdp"]["reason"])

    def test_bad_input_is_one_sentence(self):
        def refused(*arguments):
            run = study(*arguments)
            self.assertEqual(run.returncode, 2, run.stdout)
            self.assertEqual(run.stdout, "")
            return run.stderr

        empty = self.path("empty")
        os.mkdir(empty)
        self.assertIn("no recording", refused("report", empty))
        self.assertIn("is no folder", refused("report", self.path("none")))
        with open(os.path.join(empty, "x.bftrace"), "wb") as file:
            file.write(b"BFTRACE2 and then nothing of the kind")
        self.assertIn("x.bftrace", refused("report", empty))
        self.assertIn("after --", refused("run"))
        self.assertIn("no HOST:PORT", refused("watch", "nonsense"))
        refused("run", "--", "study", "report", empty)
        self.assertIn("no step", refused("run", "-o", self.path("five"), "--", "inspect", DEMO))
        self.assertIn("no step", refused("run", "-o", self.path("five"), "--", PROGRAM, "inspect", DEMO))
        self.assertIn("status 2", refused("run", "-o", self.path("six"), "--", "generate", "-m", "/nothing.gguf"))


if __name__ == "__main__":
    unittest.main()
