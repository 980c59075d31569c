#!/usr/bin/env python3
"""butterfly bench as a user meets it: what its commands print as JSON, at the smallest sizes, and what they refuse."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from program import DEMO, PROGRAM, ROOT, SANITIZED, TIMEOUT_S, butterfly, environment

sys.path.insert(0, os.path.join(ROOT, "tools"))
from check_formats import complaint, schema_of  # noqa: E402


def bench(*arguments, **options):
    return butterfly("bench", *arguments, text=True, **options)


class BenchCase(unittest.TestCase):
    def measured(self, *arguments, **options):
        run = bench(*arguments, "--json", **options)
        self.assertEqual(run.returncode, 0, run.stderr)
        found = json.loads(run.stdout)
        self.assertIsNone(complaint(schema_of(f"bench/{arguments[0]}"), found))
        return found

    def refused(self, *arguments):
        run = bench(*arguments)
        self.assertEqual(run.returncode, 2, run.stdout + run.stderr)
        self.assertEqual(run.stdout, "")
        return run.stderr

    def check_spread(self, row, least, middle, most):
        self.assertGreater(row[least], 0, row)
        self.assertLessEqual(row[least], row[middle], row)
        self.assertLessEqual(row[middle], row[most], row)


class KernelsTest(BenchCase):
    TINY = ["--mib", "1", "--rounds", "1", "--threads", "1"]

    def test_rows_have_work_time_and_roof_that_agree(self):
        found = self.measured("kernels", *self.TINY, "--types", "f32,q4_0", "--shapes", "256x512", "--keys", "64")
        peaks = {(peak["isa"], peak["threads"]): peak for peak in found["peaks"]}
        operations = set()
        for row in found["kernels"]:
            operations.add(row["operation"])
            self.check_spread(row, "least_s", "median_s", "most_s")
            peak = peaks[row["isa"], row["threads"]]
            self.assertAlmostEqual(row["gflops"], row["flops"] / row["median_s"] * 1e-9, delta=1e-6 * row["gflops"])
            self.assertAlmostEqual(row["gb_per_s"], row["bytes"] / row["median_s"] * 1e-9, delta=1e-6 * row["gb_per_s"])
            gops = peak["int8_gops"] if row["operation"] == "matmul" and row["type"] == "q4_0" else 0
            least = max(row["flops"] / (gops or peak["fp32_gflops"]), row["bytes"] / peak["memory_read_gb_per_s"]) * 1e-9
            self.assertAlmostEqual(row["share_of_roof"], least / row["median_s"], delta=1e-3 * row["share_of_roof"])
        self.assertEqual(operations, {"matmul", "attention", "rms_norm", "layer_norm", "softmax", "silu_mul", "gelu",
                                      "quantize", "conversion"})

    def test_work_is_counted_from_shapes(self):
        rows = self.measured("kernels", *self.TINY, "--only", "matmul", "--types", "q8_0", "--shapes", "256x512",
                             "--rows", "1,4")["kernels"]
        self.assertEqual([row["shape"] for row in rows], ["1 x 256 to 512", "4 x 256 to 512"])
        self.assertEqual([row["flops"] for row in rows], [2 * 256 * 512, 4 * 2 * 256 * 512])
        weights = 512 * 256 // 32 * 34
        self.assertEqual([row["bytes"] for row in rows], [weights + 4 * (256 + 512), weights + 4 * 4 * (256 + 512)])

    def test_instruction_sets_take_turns_and_the_environment_chooses_one(self):
        both = self.measured("kernels", *self.TINY, "--only", "rows", "--isas", "reference")
        self.assertEqual({row["isa"] for row in both["kernels"]}, {"reference"})
        forced = self.measured("kernels", *self.TINY, "--only", "rows", isa="reference")
        self.assertEqual({row["isa"] for row in forced["kernels"]}, {"reference"})

    def test_the_table_has_a_row_for_each(self):
        run = bench("kernels", *self.TINY, "--only", "matmul", "--types", "f16", "--shapes", "64x64")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(sum(line.startswith("| matmul | f16 |") for line in run.stdout.splitlines()), 2)

    def test_bad_words_are_named(self):
        self.assertIn("q9_9", self.refused("kernels", "--types", "q9_9"))
        self.assertIn("64y64", self.refused("kernels", "--shapes", "64y64"))
        self.assertIn("INxOUT", self.refused("kernels", "--shapes", "64x64x64"))
        self.assertIn("131072x131072", self.refused("kernels", "--shapes", "131072x131072"))
        self.assertIn("32 columns are no whole blocks", self.refused("kernels", *self.TINY, "--only", "matmul", "--types",
                                                                     "q4_k", "--shapes", "32x64"))


class MemoryTest(BenchCase):
    def test_allocations_and_slices_by_size(self):
        found = self.measured("memory", "--rounds", "1")
        for row in found["allocations"]:
            for way in ("malloc_ns", "pool_ns", "arena_ns"):
                self.assertGreater(row[way][0], 0, row)
        large = found["slices"][-1]
        self.assertLess(10 * large["slice_ns"][0], large["copy_ns"][0], "a slice copies nothing")


@unittest.skipIf(SANITIZED, "nodes are forked beside the thread that waits for signals, which sanitizers refuse")
class WireTest(BenchCase):
    TABLE = ["wire", "--only", "table", "--bytes", "65536", "--messages", "4", "--rounds", "1", "--buffers", "131072"]

    def test_the_table_has_a_row_for_each_way_and_a_node_for_each_end(self):
        rows = self.measured(*self.TABLE, "--logs", "off,info,debug", "--epochs", "3")["table"]
        keys = {(row["serialisation"], row["codec"], row["buffer"], row["log"]) for row in rows}
        self.assertEqual(len(keys), 3 * 3 * 1 * 3)
        self.assertEqual(len(rows), len(keys))
        for row in rows:
            self.assertGreater(row["gb_per_s"][0], 0)
            if row["codec"] == "off":
                self.assertAlmostEqual(row["ratio"], 1, delta=0.01)
            else:
                self.assertGreater(row["ratio"], 1.03, row)
            sender, receiver = row["nodes"]
            self.assertEqual((sender["name"], receiver["name"]), ("sender", "receiver"))
            for node in row["nodes"]:
                self.assertEqual(node["messages"], 12)
                self.assertGreaterEqual(node["socket_buffer"], 65536)
            self.assertLessEqual(sender["wire_bytes"], receiver["wire_bytes"], "the receiver also counts the first")

    def test_a_log_level_shows_in_the_lines_that_were_written(self):
        rows = self.measured(*self.TABLE, "--logs", "off,info,debug", "--serialisations", "frame", "--codecs", "off")
        lines = {row["log"]: [node["log_bytes"] for node in row["nodes"]] for row in rows["table"]}
        self.assertEqual(lines["off"], [0, 0])
        for node in (0, 1):
            self.assertGreater(lines["info"][node], 0)
            self.assertGreater(lines["debug"][node], 2 * lines["info"][node])

    def test_copies_cost_time_that_frames_do_not(self):
        table = self.measured("wire", "--only", "table", "--bytes", "4194304", "--messages", "4", "--rounds", "1",
                              "--buffers", "1048576", "--codecs", "off", "--logs", "off")["table"]
        took = {row["serialisation"]: [node["serialise_ms"] for node in row["nodes"]] for row in table}
        for node in (0, 1):
            self.assertGreater(took["copy"][node], 10 * took["frame"][node])
            self.assertGreater(took["protobuf"][node], took["copy"][node] / 2)

    def test_a_time_bounds_a_row_as_epochs_do(self):
        row, = self.measured(*self.TABLE, "--seconds", "0.3", "--serialisations", "frame", "--codecs", "off", "--logs",
                             "off")["table"]
        sender = row["nodes"][0]
        self.assertGreaterEqual(sender["seconds"], 0.3)
        self.assertLess(sender["seconds"], 30)
        self.assertGreater(sender["messages"], 4)
        self.assertEqual(sender["messages"] % 4, 0, "an epoch is whole")

    def test_exchanges_and_frames_are_there(self):
        found = self.measured("wire", "--only", "exchanges,frames", "--rounds", "1", "--bytes-max", "1024", "--sizes",
                              "1720,65536")
        self.assertEqual([row["bytes"] for row in found["exchanges"]], [64, 1024])
        self.assertEqual({one["engine"] for one in found["exchanges"][0]["results"]}, {"raw", "plain", "tls"})
        self.assertEqual([row["bytes"] for row in found["frames"]], [1720, 65536])

    def test_what_contradicts_is_refused(self):
        self.assertIn("xml", self.refused("wire", "--serialisations", "xml"))
        self.assertIn("--epochs", self.refused("wire", "--epochs", "2", "--seconds", "1"))


class PlanTest(BenchCase):
    def test_no_plan_is_better_than_the_ideal(self):
        found = self.measured("plan", "--models", "llama-2-7b", "--nodes", "3,8", "--rounds", "1")
        strategies = {row["strategy"] for row in found["plans"]}
        self.assertLessEqual({"uniform", "balanced", "tensor", "hybrid", "auto"}, strategies)
        self.assertNotIn("custom", strategies)
        for row in found["plans"]:
            self.check_spread(row, "plan_s_least", "plan_s", "plan_s_most")
            self.assertNotIn("error", row)
            self.assertEqual(row["layers"], 32)
            self.assertGreater(row["share_of_ideal"], 0)
            self.assertLessEqual(row["share_of_ideal"], 1 + 1e-9, row)
            self.assertLessEqual(row["ideal_token_s"], row["token_s"] * (1 + 1e-9), row)
            self.assertAlmostEqual(row["gap"], row["step_s"] / row["slowest_bound_s"] - 1, delta=1e-9)
        balanced = [row for row in found["plans"] if row["strategy"] == "balanced"]
        self.assertEqual([round(row["gap"], 6) for row in balanced], [0] * 4, "balanced reaches the bound")

    def test_a_plan_that_there_is_not_is_a_row_that_says_why(self):
        found = self.measured("plan", "--models", "llama-3.1-405b", "--nodes", "100", "--strategies", "tensor",
                              "--goals", "latency", "--rounds", "1")
        self.assertIn("bytes", found["plans"][0]["error"])

    def test_bad_words_are_named(self):
        self.assertIn("sideways", self.refused("plan", "--strategies", "sideways"))
        self.assertIn("custom", self.refused("plan", "--strategies", "custom"))
        self.assertIn("llama-9b", self.refused("plan", "--models", "llama-9b"))


class ModelTest(BenchCase):
    SHORT = ["--prefill", "8", "--decode", "2", "--rounds", "1"]

    def test_shapes_of_every_kind_run_on_several_nodes(self):
        found = self.measured("model", "--shapes", "t5-small,bert-base", *self.SHORT)
        self.assertEqual([(row["model"], row["nodes"]) for row in found["results"]],
                         [(shape, nodes) for shape in ("t5-small", "bert-base") for nodes in (1, 2, 4, 8)])
        for row in found["results"]:
            self.assertGreater(row["prefill_tokens_per_s"][0], 0)
            self.assertEqual(len(row["decode_tokens_per_s"]), 0 if row["model"] == "bert-base" else 1)
            self.assertGreater(row["prefill_gflops"], 0)

    def test_a_file_can_be_split_over_several_numbers_of_nodes(self):
        found = self.measured("model", "-m", DEMO, "--node-counts", "1,2", "--threads", "1", *self.SHORT)
        self.assertEqual([(row["model"], row["nodes"], row["threads"]) for row in found["results"]],
                         [(DEMO, 1, 1), (DEMO, 2, 1)])

    def test_what_contradicts_is_refused(self):
        self.assertIn("one of them", self.refused("model", "-m", DEMO, "--shapes", "gpt2-124m"))
        self.assertIn("gpt2-125m", self.refused("model", "--shapes", "gpt2-124m,gpt2-125m"))
        self.assertIn("q9", self.refused("model", "--shapes", "gpt2-124m", "--type", "q9"))
        self.assertIn("--node-counts", self.refused("model", "-m", DEMO, "--nodes", "2", "--node-counts", "1,2"))
        self.assertIn("context of t5-small, 512", self.refused("model", "--shapes", "t5-small", "--prefill", "512"))


class TrainTest(BenchCase):
    def test_each_precision_and_number_of_ranks_has_a_row(self):
        found = self.measured("train", "--models", "tinytransformer-tiny", "--ranks", "1,2", "--seq", "16", "--batch",
                              "2", "--steps", "2")
        self.assertEqual([(row["precision"], row["ranks"]) for row in found["runs"]],
                         [("fp32", 1), ("fp32", 2), ("bf16", 1), ("bf16", 2)])
        for row in found["runs"]:
            self.check_spread(row, "step_s_least", "step_s", "step_s_most")
            self.assertAlmostEqual(row["steps_per_s"] * row["step_s"], 1, delta=1e-9)
            self.assertAlmostEqual(row["tokens_per_s"], 32 * row["steps_per_s"], delta=1e-6 * row["tokens_per_s"])
            self.assertGreater(row["mfu"], 0)
            self.assertGreater(row["peak_gflops"], 0)

    def test_bad_words_are_named(self):
        self.assertIn("fp8", self.refused("train", "--precisions", "fp8"))
        self.assertIn("tinytransformer-huge", self.refused("train", "--models", "tinytransformer-huge"))


@unittest.skipIf(SANITIZED, "nodes are forked beside the thread that waits for signals, which sanitizers refuse")
class AllTest(BenchCase):
    ONLY = ["all", "--quick", "--only", "memory,sgd,serve"]

    def run_all(self, *arguments, **options):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, TMPDIR=folder):
            run = bench(*self.ONLY, *arguments, **options)
            self.assertEqual(os.listdir(folder), [], "nothing is left behind")
        return run

    def test_one_object_has_each_by_name_with_machine_and_version(self):
        run = self.run_all("--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        found = json.loads(run.stdout)
        self.assertIsNone(complaint(schema_of("bench"), found))
        self.assertRegex(found["version"], r"^\d+\.\d+\.\d+$")
        self.assertTrue(found["quick"])
        for key in ("cpu", "cores", "usable_threads", "isa", "memory_bytes"):
            self.assertTrue(found["machine"][key], key)
        self.assertGreater(found["machine"]["all_threads"]["fp32_gflops"], 0)
        for share in ("stolen_cpu_share", "other_programs_cpu_share"):
            for one in (found, *found["benchmarks"].values()):
                self.assertTrue(0 <= one[share] <= 1, one[share])
        self.assertEqual(list(found["benchmarks"]), ["memory", "serve", "sgd"])
        for name, one in found["benchmarks"].items():
            self.assertEqual(one["exit_code"], 0, one)
            self.assertTrue(one["command"].startswith(f"butterfly bench {name} "), one["command"])
            self.assertIn("result", one)
        self.assertEqual(found["benchmarks"]["serve"]["result"]["completed"], 16)

    def test_a_text_has_what_each_prints(self):
        run = self.run_all("--skip", "serve")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("== butterfly bench memory", run.stdout)
        self.assertIn("ns to allocate", run.stdout)
        self.assertIn("== butterfly bench sgd", run.stdout)

    def test_one_that_fails_does_not_end_the_others(self):
        limit = 1 << 20  # the model that serve needs is larger
        run = self.run_all("--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual(run.returncode, 2, run.stderr)
        found = json.loads(run.stdout)
        self.assertIsNone(complaint(schema_of("bench"), found))
        found = found["benchmarks"]
        self.assertEqual([found[name]["exit_code"] for name in ("memory", "serve", "sgd")], [0, 2, 0])
        self.assertIn("no model to serve", found["serve"]["error"])
        self.assertNotIn("result", found["serve"])

    def test_the_page_of_numbers_reads_what_every_benchmark_prints(self):
        run = self.run_all("--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        output = json.loads(run.stdout)
        short = ["--prefill", "8", "--decode", "2", "--rounds", "1"]
        for name, *options in (
                ("kernels", *KernelsTest.TINY, "--types", "f32", "--shapes", "64x64", "--keys", "64"),
                ("wire", "--rounds", "1", "--bytes-max", "64", "--sizes", "4096", "--bytes", "4096", "--messages", "2"),
                ("collectives", "--rounds", "1", "--sizes", "1024", "--members", "2", "--no-small"),
                ("plan", "--models", "llama-3.1-405b", "--nodes", "100", "--strategies", "uniform,tensor", "--rounds", "1"),
                ("model", "--shapes", "t5-small,bert-base", "--node-counts", "1", *short),
                ("train", "--models", "tinytransformer-tiny", "--ranks", "1", "--seq", "16", "--batch", "2", "--steps", "2")):
            output["benchmarks"][name] = {"command": f"butterfly bench {name}", "exit_code": 0, "seconds": 1.0,
                                          "stolen_cpu_share": 0.5, "other_programs_cpu_share": 0.25,
                                          "result": self.measured(name, *options)}
        page = self.page_of(output)
        self.assertNotIn("left out", page)
        self.assertNotIn("failed", page)
        self.assertIn("tools/make_performance.py --butterfly", page)
        self.assertIn("**disturbed**: the host took 50 % of the CPU time wanted and other programs used 25 %", page)
        for part in ("| t5-small | 1 |", "| bert-base | 1 |", "| llama-3.1-405b | 100 | tensor |", "does not fit",
                     "| tinytransformer-tiny | bf16 |", "| frame | zstd |", "| softmax | f32 |", "inproc, us of one"):
            self.assertIn(part, page)
        output["benchmarks"]["sgd"] = {"command": "butterfly bench sgd", "exit_code": 2, "seconds": 1.0,
                                       "stolen_cpu_share": 0.0, "other_programs_cpu_share": 0.0, "error": "no luck"}
        del output["benchmarks"]["memory"]
        page = self.page_of(output, fails=True)
        self.assertIn("It failed: no luck", page)
        self.assertIn("`butterfly bench memory` was left out", page)
        del output["benchmarks"]["train"]["result"]["runs"][0]["mfu"]
        self.assertIn("train: a row lacks mfu", self.page_of(output, fails=True))

    def page_of(self, output, fails=False):
        """The page, or what was wrong; the page is what its data make until a number of it is edited."""
        with tempfile.TemporaryDirectory() as folder:
            path = {name: os.path.join(folder, name) for name in ("bench.json", "page.md", "data.json")}
            with open(path["bench.json"], "w", encoding="utf-8") as file:
                json.dump(output, file)
            make = [sys.executable, "-B", os.path.join(ROOT, "tools/make_performance.py"), "--page", path["page.md"], "--data",
                    path["data.json"]]
            made = subprocess.run([*make, "--from", path["bench.json"]], capture_output=True, text=True)
            self.assertEqual(made.returncode, 1 if fails else 0, made.stderr)
            if not os.path.exists(path["page.md"]):
                return made.stderr
            with open(path["page.md"], encoding="utf-8") as file:
                page = file.read()
            self.assertEqual(subprocess.run([*make, "--check"], capture_output=True).returncode, 0)
            with open(path["page.md"], "w", encoding="utf-8") as file:
                file.write(page.replace("2 x", "3 x").replace(" 1 |", " 7 |"))
            edited = subprocess.run([*make, "--check"], capture_output=True, text=True)
            self.assertEqual(edited.returncode, 1, edited.stdout)
            return page

    def test_ctrl_c_ends_all_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([PROGRAM, "bench", "all", "--only", "wire", "--json"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env=environment(TMPDIR=folder))
            for line in process.stderr:
                if line.startswith("bench wire"):
                    break
            while not any(os.path.exists(os.path.join(folder, one, "errors")) and
                          os.path.getsize(os.path.join(folder, one, "errors")) for one in os.listdir(folder)):
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual((process.returncode, out), (130, ""))
            self.assertEqual(os.listdir(folder), [])

    def test_without_a_place_for_files_there_is_a_sentence(self):
        with unittest.mock.patch.dict(os.environ, TMPDIR="/nowhere/at/all"):
            self.assertIn("TMPDIR", self.refused("all", "--only", "memory"))
            self.assertIn("TMPDIR", self.refused("wire", "--only", "table"))

    def test_unknown_names_are_refused(self):
        self.assertIn("speed", self.refused("all", "--only", "speed"))


class PageTest(unittest.TestCase):
    def test_the_page_in_docs_is_what_its_data_make(self):
        check = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tools/make_performance.py"), "--check"],
                               capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)


if __name__ == "__main__":
    unittest.main()
