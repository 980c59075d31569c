"""Two builds compared: a change that every round shows is told, noise is not."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
from bench_compare import compare, direction, numbers_of


class BenchCompareTest(unittest.TestCase):
    def test_rows_are_named_after_their_labels_not_their_place(self):
        value = {"rows": [{"type": "q4_0", "threads": 2, "decode_gb_per_s": 12.5}], "label": "x", "rounds": 3}
        self.assertEqual(numbers_of(value), {"rows[type=q4_0,threads=2].decode_gb_per_s": 12.5})

    def test_what_every_round_shows_has_a_verdict_by_its_direction(self):
        rounds = [({"a_us": 10.0, "b_per_s": 10.0}, {"a_us": 12.0, "b_per_s": 12.0})] * 8
        self.assertEqual([row[4] for row in compare(rounds, 2)], ["worse", "better"])

    def test_noise_and_few_rounds_have_none(self):
        noisy = [({"a_us": 10.0}, {"a_us": value}) for value in (12, 12, 9.9, 12, 9.9, 12, 12, 12, 12)]
        self.assertEqual(compare(noisy, 2)[0][4], "")
        self.assertEqual(compare([({"a_us": 10.0}, {"a_us": 20.0})] * 4, 2)[0][4], "")
        self.assertEqual(compare([({"a_us": 10.0}, {"a_us": 10.1})] * 9, 2)[0][4], "")

    def test_directions(self):
        self.assertEqual([direction(name) for name in ("x.tokens_per_s", "load_s", "count", "y.bytes")], [1, -1, 0, -1])

    def test_rows_of_every_benchmark_have_names_of_their_own(self):
        value = {"benchmarks": {
            "kernels": {"result": {"kernels": [
                {"operation": "matmul", "type": "q4_0", "shape": "1 x 2 to 3", "isa": "avx2", "threads": 1, "share_of_roof": 0.5},
                {"operation": "matmul", "type": "q4_0", "shape": "8 x 2 to 3", "isa": "avx2", "threads": 1, "share_of_roof": 0.6}]}},
            "wire": {"result": {"table": [
                {"serialisation": "frame", "codec": "off", "buffer": 1, "log": "off", "ratio": 1.5,
                 "nodes": [{"name": "sender", "cpu_s_per_gb": 2.0}, {"name": "receiver", "cpu_s_per_gb": 3.0}]}]}},
            "plan": {"result": {"plans": [
                {"model": "m", "layers": 4, "nodes": 2, "strategy": "uniform", "goal": "latency", "gap": 0.5},
                {"model": "m", "layers": 4, "nodes": 2, "strategy": "uniform", "goal": "throughput", "gap": 0.7}]}}}}
        found = numbers_of(value)
        self.assertEqual(len(found), 7, found)
        self.assertEqual(sorted(direction(name) for name in found), [-1, -1, -1, -1, 0, 1, 1])


if __name__ == "__main__":
    unittest.main()
