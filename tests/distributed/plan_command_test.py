#!/usr/bin/env python3
"""butterfly plan as a user meets it: files, shapes, running workers, tables, pictures, simulations, bad input."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from program import DEMO, PROGRAM, ROOT, TIMEOUT_S, Worker, butterfly

CLUSTERS = os.path.join(ROOT, "examples/clusters")
EQUAL = os.path.join(CLUSTERS, "equal.toml")
TABLE = os.path.join(ROOT, "tools/plan_table.py")
NODE = "memory = '4 GiB'\nmemory_gb_per_s = 20\nfp32_gflops = 100\n"
LINKS = "[links.default]\nlatency_us = 50\ngb_per_s = 1\n"


def plan(*arguments, model="llama-2-7b", cluster=EQUAL):
    where = ["--cluster", cluster] if cluster else []
    return butterfly("plan", "-m", model, *where, *arguments, text=True)


def planned(*arguments, **options):
    run = plan(*arguments, "--json", **options)
    if run.returncode != 0:
        raise AssertionError(run.stderr)
    return json.loads(run.stdout)


def load_table():
    spec = importlib.util.spec_from_file_location("plan_table", TABLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Plans(unittest.TestCase):
    def test_every_strategy_covers_every_layer_and_slice_once_on_every_example(self):
        for name in sorted(os.listdir(CLUSTERS)):
            cluster = os.path.join(CLUSTERS, name)
            compared = planned("--type", "q4_0", cluster=cluster, model="llama-2-13b")["strategies"]
            self.assertIn("auto", [s["strategy"] for s in compared])
            for strategy in compared:
                if not strategy["feasible"]:
                    self.assertGreater(len(strategy["reason"]), 20)
                    continue
                shown = planned("--type", "q4_0", "--split", strategy["strategy"], cluster=cluster, model="llama-2-13b")
                slices = [0] * 40
                for share in shown["plan"]["shares"]:
                    self.assertLessEqual(share["memory_bytes"], share["memory_bytes_of"])
                    for layer in range(share["first_layer"], share["last_layer"] + 1):
                        slices[layer] += share["last_slice"] + 1 - share["first_slice"]
                self.assertEqual(slices, [32] * 40, (name, strategy["strategy"]))
                self.assertEqual(shown["plan"]["token_s"], strategy["token_s"])

    def test_a_tensor_group_has_every_expert_once(self):
        cluster = os.path.join(CLUSTERS, "mixed-8.toml")
        plan = planned("--type", "q4_0", "--split", "tensor", cluster=cluster, model="qwen3-30b-a3b")["plan"]
        self.assertGreater(len(plan["shares"]), 2)
        experts = [e for share in plan["shares"] for e in range(share["first_expert"], share["last_expert"] + 1)]
        self.assertEqual(sorted(experts), list(range(128)))

    def test_auto_is_never_worse_than_what_it_chose_from(self):
        table = load_table()
        for goal in table.GOALS:
            strategies = planned("--goal", goal, "--batch", "8", "--type", "q8_0")["strategies"]
            auto = next(s for s in strategies if s["strategy"] == "auto")
            self.assertEqual(table.worse_than(auto, strategies, goal), [])
            # Negative control: the check sees one that is.
            key, less = table.GOALS[goal]
            self.assertNotEqual(table.worse_than(dict(auto, **{key: auto[key] * (2 if less else 0.5)}), [auto], goal), [])
        self.assertEqual(table.worse_than({"feasible": False}, [dict(auto, strategy="x")], "latency"), ["x"])

    def test_the_planning_page_shows_what_the_program_prints(self):
        run = subprocess.run([sys.executable, "-B", TABLE, "--butterfly", PROGRAM], capture_output=True, text=True,
                             check=False, timeout=TIMEOUT_S)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(os.path.join(ROOT, "docs/planning.md"), encoding="utf-8") as page:
            self.assertIn(run.stdout, page.read())

    def test_models_are_shapes_files_and_bare_configurations(self):
        self.assertEqual(planned(model="GPT-3-175B", cluster=os.path.join(CLUSTERS, "mixed-64.toml"))["layers"], 96)
        self.assertEqual(planned(model=DEMO)["layers"], 5)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                           "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
                           "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}, file)
            self.assertEqual(planned(model=folder)["layers"], 3)

    def test_the_table_says_who_does_what_and_how_full_each_gets(self):
        run = plan("--split", "uniform")
        self.assertEqual(run.returncode, 0, run.stderr)
        for part in ("embedding, 0-7", "24-31, head", "node-4", "16.0 GiB", "first token", "per token",
                     "balance", "coordinator", "uniform *", "█"):
            self.assertIn(part, run.stdout)

    def test_a_custom_plan_is_followed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".plan") as file:
            file.write("node-3 0-9\nnode-1 10-31 slices 0-19\nnode-2 10-31 slices 20-31\n")
            file.flush()
            shares = planned("--split", "custom", "--custom", file.name)["plan"]["shares"]
            self.assertEqual([(s["node"], s["first_layer"], s["last_slice"]) for s in shares],
                             [("node-3", 0, 31), ("node-1", 10, 19), ("node-2", 10, 31)])

    def test_a_custom_plan_gives_experts_apart_from_slices(self):
        with tempfile.NamedTemporaryFile("w", suffix=".plan") as file:
            file.write("node-1 0-47 slices 0-25 experts 0-15\nnode-2 0-47 slices none experts 16-99\n"
                       "node-3 0-47 slices 26-31 experts 100-127\n")
            file.flush()
            words = ("--split", "custom", "--custom", file.name, "--type", "q4_0")
            shares = planned(*words, model="qwen3-30b-a3b")["plan"]["shares"]
            self.assertEqual([(s["first_expert"], s["last_expert"]) for s in shares], [(0, 15), (16, 99), (100, 127)])
            self.assertEqual([s["last_slice"] - s["first_slice"] + 1 for s in shares], [26, 0, 6])
            self.assertEqual(shares[1]["kv_bytes"], 0)
            shown = plan(*words, model="qwen3-30b-a3b").stdout
            self.assertIn("slices 0-25, experts 0-15", shown)
            self.assertIn("no slices, experts 16-99", shown)
            file.truncate(0)
            file.seek(0)
            file.write("node-1 0-47 slices 0-25 experts 0-14\nnode-2 0-47 slices 26-31 experts 15-127\n")
            file.flush()
            refused = plan(*words, model="qwen3-30b-a3b")
            self.assertEqual(refused.returncode, 2)
            self.assertIn("one of which has experts 12 to 15 together", refused.stderr)

    def test_the_picture_is_one_well_formed_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.svg")
            self.assertEqual(plan("--svg", path).returncode, 0)
            text = "".join(ElementTree.parse(path).getroot().itertext())
            for part in ("node-1", "layer 31", "tensor", "memory"):
                self.assertIn(part, text)

    def test_training_is_predicted_replicated_and_sharded(self):
        training = planned("--train", "--batch", "16", "--context", "512", model="gpt2-124m")["training"]
        ddp, sharded = training["ddp"], training["full_shard"]
        self.assertEqual(list(training), ["ddp", "zero1", "shard_grad_op", "full_shard", "pipeline"])
        self.assertEqual(sum(node["sequences"] for node in ddp["nodes"]), 16)
        self.assertGreater(ddp["nodes"][0]["memory_bytes"], sharded["nodes"][0]["memory_bytes"])
        shown = plan("--train", model="gpt2-124m")
        self.assertIn("moments", shown.stdout)

    WORLD = ["--train", "--world-size", "4", "--batch", "8", "--context", "256", "--fp32-gflops", "400",
             "--memory-gb-per-s", "20", "--latency-us", "100", "--gbit-per-s", "8"]

    def test_ranks_need_no_cluster_file(self):
        def of(memory):
            return planned(*self.WORLD, "--memory", memory, model="gpt2-124m", cluster=None)

        plan_of_all = of("64GiB")
        training = plan_of_all["training"]
        weights = training["ddp"]["nodes"][0]["weight_bytes"]
        for name, halves in (("ddp", 2), ("zero1", 2), ("shard_grad_op", 2), ("full_shard", 3)):
            one = training[name]
            self.assertEqual(len(one["nodes"]), 4)
            self.assertAlmostEqual(one["bytes_sent_per_node"], halves * 3 / 4 * weights)
            # A half of a ring: three messages of a quarter, 100 us and 1 GB/s.
            self.assertAlmostEqual(one["nodes"][0]["communication_s"], halves * 3 * (100e-6 + weights / 4 / 1e9))
            self.assertTrue(one["step_low_s"] < one["step_s"] < one["step_high_s"])
        self.assertEqual(plan_of_all["recommended"]["strategy"], "ddp")
        self.assertEqual(plan_of_all["rank"]["source"], "described")
        self.assertEqual(of("2GiB")["recommended"]["strategy"], "zero1")
        self.assertEqual(of("1200MiB")["recommended"]["strategy"], "full_shard")
        self.assertEqual(of("900MiB")["recommended"]["strategy"], "pipeline")
        none = of("600MiB")
        self.assertIsNone(none["recommended"]["strategy"])
        self.assertEqual(none["full_shard_fits_on_ranks"], 32)
        shown = plan(*self.WORLD, "--memory", "1200MiB", model="gpt2-124m", cluster=None)
        self.assertIn("recommended: full_shard", shown.stdout)
        self.assertIn("--parallel STRATEGY", shown.stdout)

    def test_this_machine_stands_for_the_ranks(self):
        found = planned("--train", "--world-size", "2", model="tinytransformer-tiny", cluster=None)
        self.assertEqual(found["rank"]["source"], "measured")
        self.assertEqual(found["link"]["source"], "assumed")
        self.assertGreater(found["rank"]["fp32_gflops"], 0)
        self.assertEqual(found["batch"], 8)
        self.assertEqual(planned("--train", "--world-size", "16", model="tinytransformer-tiny", cluster=None)["batch"], 16)

    def test_running_workers_describe_themselves(self):
        with Worker() as a, Worker() as b:
            shown = planned("--workers", f"{a.address},{b.address}", model=DEMO, cluster=None)
            self.assertEqual(shown["nodes"], 2)
            self.assertGreater(shown["plan"]["tokens_per_s"], 0)


class Simulations(unittest.TestCase):
    OPTIONS = ["--batch", "4", "--simulate", "--requests", "50", "--rate", "0.5", "--generate", "16", "--type", "q4_0"]

    def test_the_same_seed_gives_the_same_report(self):
        one, again = (plan(*self.OPTIONS, "--jitter", "0.1", "--seed", "7", "--json").stdout for _ in range(2))
        self.assertEqual(one, again)
        other = planned(*self.OPTIONS, "--jitter", "0.1", "--seed", "8")["simulation"]
        self.assertNotEqual(json.loads(one)["simulation"]["seconds"], other["seconds"])

    def test_percentiles_and_utilisation_are_in_order(self):
        report = planned(*self.OPTIONS)["simulation"]
        for times in (report["first_token_s"], report["request_s"]):
            self.assertTrue(0 < times["p50"] <= times["p95"] <= times["p99"])
        self.assertTrue(all(0 <= share <= 1 for share in report["utilisation"].values()))
        self.assertIn("p99", plan(*self.OPTIONS).stdout)

    def test_failures_cost_time_and_lose_no_request(self):
        calm = planned(*self.OPTIONS)["simulation"]
        stormy = planned(*self.OPTIONS, "--fail-every", "20")["simulation"]
        self.assertGreater(stormy["failures"], 0)
        self.assertGreater(stormy["replayed_rows"], 0)
        self.assertGreater(stormy["request_s"]["p99"], calm["request_s"]["p99"])

    def test_a_thousand_nodes_are_simulated(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("[[group]]\nname = 'n'\ncount = 1000\n" + NODE.replace("4 GiB", "8 GiB") + LINKS)
            file.flush()
            report = planned("--split", "uniform", "--type", "q4_0", "--batch", "64", "--simulate", "--requests", "200",
                             model="llama-3.1-405b", cluster=file.name)["simulation"]
            self.assertEqual(len(report["utilisation"]), 1000)


class BadInput(unittest.TestCase):
    def refusal(self, *arguments, **options):
        run = plan(*arguments, **options)
        self.assertEqual(run.returncode, 2, run.stdout)
        self.assertEqual(run.stdout, "")
        return run.stderr

    def of_cluster(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(text)
            file.flush()
            complaint = self.refusal(cluster=file.name)
            self.assertIn(file.name, complaint)
            self.assertEqual(complaint.count("\n"), 1)
            return complaint

    def test_clusters_that_cannot_be(self):
        a, b = ("[[node]]\nname = '%s'\n" % name + NODE for name in "ab")
        self.assertIn("fp32_gflops is -100", self.of_cluster(a.replace("100", "-100") + b + LINKS))
        self.assertIn("has no memory", self.of_cluster(a.replace("memory = '4 GiB'\n", "") + b + LINKS))
        self.assertIn("memory_gb_per_s is nan", self.of_cluster(a.replace("20", "nan") + LINKS))
        self.assertIn('two nodes are named "a"', self.of_cluster(a + a + LINKS))
        self.assertIn("describes no node", self.of_cluster(LINKS))
        self.assertIn('ends names "z"', self.of_cluster(
            a + b + LINKS + "[[links.between]]\nends = ['a', 'z']\nlatency_us = 1\ngb_per_s = 1\n"))
        self.assertIn("no link connects b", self.of_cluster(a + b))

    def test_a_model_that_fits_nowhere(self):
        complaint = self.refusal(model="gpt-3-175b")
        self.assertIn("missing", complaint)

    def test_custom_plans_that_cannot_be(self):
        for text, part in (("node-1 0-20\nnode-2 22-31\n", "21"), ("node-1 0-20\nnode-2 20-31\n", "20"),
                           ("nobody 0-31\n", "nobody"), ("node-1 0-99\n", "99"), ("node-1 zero\n", "1")):
            with tempfile.NamedTemporaryFile("w", suffix=".plan") as file:
                file.write(text)
                file.flush()
                self.assertIn(part, self.refusal("--split", "custom", "--custom", file.name))

    def test_options_that_contradict(self):
        self.assertIn("got neither", self.refusal(cluster=None))
        self.assertIn("got both", self.refusal("--workers", "127.0.0.1:1"))
        self.assertIn("--custom FILE", self.refusal("--split", "custom"))
        self.assertIn("no named shape", self.refusal(model="llama-9b"))
        self.assertIn("expected one of f32", self.refusal("--type", "q3"))
        self.assertIn("uniform", self.refusal("--split", "fair"))
        self.assertIn("exceed the context", self.refusal("--simulate", "--context", "100", "--prompt", "60"))
        self.assertIn("exceed the context", self.refusal("--simulate", "--generate", str(2**31 - 1)))
        self.assertIn("0 requests", self.refusal("--simulate", "--requests", "0"))
        self.assertIn("rate is -1", self.refusal("--simulate", "--rate", "-1"))
        self.assertNotEqual(plan("--rate", "3").returncode, 0)
        self.assertIn("or --world-size N, got neither", self.refusal("--train", cluster=None))
        self.assertNotEqual(plan("--train", "--world-size", "2").returncode, 0)  # and a cluster
        self.assertNotEqual(plan("--world-size", "2", cluster=None).returncode, 0)
        self.assertNotEqual(plan("--train", "--world-size", "2", "--fp32-gflops", "9", cluster=None).returncode, 0)
        self.assertIn("no sequence for each", self.refusal("--train", "--world-size", "4", "--batch", "3", cluster=None))
        self.assertIn('--memory is "much"', self.refusal("--train", "--world-size", "2", "--memory", "much", cluster=None))
        self.assertIn("127.0.0.1:1", self.refusal("--workers", "127.0.0.1:1", cluster=None))


if __name__ == "__main__":
    unittest.main()
