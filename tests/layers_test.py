#!/usr/bin/env python3
"""The layers check finds what it is there to find: each test breaks one rule in a small tree of its own."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parent / "layers.py"

TREE = {
    "ARCHITECTURE.md": "| row | module | what it is | may include |\n|--:|---|---|---|\n"
                       "| 0 | `base` | words | - |\n| 1 | `trace` | clocks | base |\n"
                       "| 2 | `tensor` | views | base |\n| 3 | `kernel` | maths | tensor |\n"
                       "| 3 | `wire` | bytes | base |\n| 9 | `api` | the door | kernel, wire |\n"
                       "\n| sub-module | what it is | may include |\n|---|---|---|\n"
                       "| `kernel/table` | values | - |\n| `kernel/inference` | loops | table |\n"
                       "| `kernel/training` | more loops | inference |\n| `wire/channel` | a line | - |\n",
    "src/butterfly/base/result.h": "#include <fmt/format.h>\n",
    "src/butterfly/trace/trace.h": "#include <array>\n",
    "src/butterfly/tensor/view.h": '#include "butterfly/base/result.h"\n',
    "src/butterfly/kernel/CMakeLists.txt": "butterfly_module(kernel DEPS tensor)\n",
    "src/butterfly/kernel/table/table.h": "struct Table;\n",
    "src/butterfly/kernel/inference/avx2.cc": '#include <immintrin.h>\n#include "butterfly/kernel/table/table.h"\n',
    "src/butterfly/kernel/inference/linear.cc": '#include "butterfly/base/result.h"\n#include "butterfly/tensor/view.h"\n'
                                      '#include "butterfly/trace/trace.h"\n',
    "src/butterfly/kernel/training/step.cc": '#include "butterfly/kernel/table/table.h"\n',
    "src/butterfly/wire/channel/channel.h": '#include "butterfly/base/result.h"\n',
    "src/butterfly/api/door.cc": '#include "butterfly/door.h"\n',
    "include/butterfly/door.h": '#include <string>\n#include "butterfly/base/result.h"\n',
}


class Layers(unittest.TestCase):
    def check(self, changes):
        """Runs the checker on TREE with `changes` laid over it; returns (status, output)."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**TREE, **changes}.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, str(CHECKER), "--root", folder], capture_output=True, text=True,
                                 check=False, timeout=60)
            return run.returncode, run.stdout + run.stderr

    def expect_violation(self, changes, words):
        status, output = self.check(changes)
        self.assertEqual(status, 1, output)
        self.assertIn(words, output)
        self.assertIn(", 1 violations", output)

    def test_a_tree_that_keeps_the_rules_passes(self):
        status, output = self.check({})
        self.assertEqual(status, 0, output)

    def test_a_module_above_is_out_of_reach(self):
        self.expect_violation({"src/butterfly/tensor/bad.h": '#include "butterfly/kernel/table/table.h"\n'},
                              'src/butterfly/tensor/bad.h: includes "butterfly/kernel/table/table.h"')

    def test_a_sibling_is_out_of_reach(self):
        self.expect_violation({"src/butterfly/wire/channel/bad.cc": '#include "butterfly/kernel/table/table.h"\n'},
                              "src/butterfly/wire/channel/bad.cc")

    def test_tests_obey_like_the_rest(self):
        self.expect_violation({"src/butterfly/wire/channel/bad_test.cc": '  #  include "butterfly/tensor/view.h"\n'},
                              "bad_test.cc")

    def test_a_path_around_the_names_is_no_way_out(self):
        self.expect_violation({"src/butterfly/wire/channel/bad.cc": '#include "../kernel/table.h"\n'}, "../kernel/table.h")

    def test_modules_do_not_stand_on_the_public_api(self):
        self.expect_violation({"src/butterfly/tensor/bad.cc": '#include "butterfly/door.h"\n'}, "public API")

    def test_cmake_may_not_link_what_the_table_forbids(self):
        self.expect_violation({"src/butterfly/kernel/CMakeLists.txt": "butterfly_module(kernel DEPS tensor wire)\n"},
                              "DEPS names `wire`")

    def test_a_folder_without_a_row_is_named(self):
        self.expect_violation({"src/butterfly/attic/a.h": ""}, "src/butterfly/attic: has no row")

    def test_a_sub_module_above_is_out_of_reach(self):
        self.expect_violation({"src/butterfly/kernel/table/bad.cc": '#include "butterfly/kernel/inference/a.h"\n',
                               "src/butterfly/kernel/inference/a.h": ""},
                              'src/butterfly/kernel/table/bad.cc: includes "butterfly/kernel/inference/a.h"')

    def test_tests_may_use_every_sub_module_of_their_module(self):
        status, output = self.check({
            "src/butterfly/kernel/table/table_test.cc": '#include "butterfly/kernel/inference/a.h"\n',
            "src/butterfly/kernel/inference/a.h": ""})
        self.assertEqual(status, 0, output)

    def test_a_sub_module_without_a_row_is_named(self):
        self.expect_violation({"src/butterfly/wire/attic/a.h": ""}, "src/butterfly/wire/attic: has no row")
        self.expect_violation({"src/butterfly/tensor/attic/a.h": ""}, "src/butterfly/tensor/attic/a.h: is in a sub-module")

    def test_a_row_without_files_is_named(self):
        table = TREE["ARCHITECTURE.md"] + "| `wire/ghost` | nothing | - |\n"
        self.expect_violation({"ARCHITECTURE.md": table}, "`wire/ghost` has no files")

    def test_a_circle_of_sub_modules_is_refused(self):
        table = TREE["ARCHITECTURE.md"].replace("| values | - |", "| values | training |")
        status, output = self.check({"ARCHITECTURE.md": table})
        self.assertEqual(status, 2, output)
        self.assertIn("the table has a circle", output)

    def test_files_with_their_own_instruction_set_stay_plain(self):
        self.expect_violation({"src/butterfly/kernel/inference/avx2.cc": "#include <immintrin.h>\n#include <vector>\n"},
                              "avx2.cc: reaches vector")

    def test_plainness_is_followed_through_headers(self):
        self.expect_violation({"src/butterfly/kernel/table/table.h": "#include <algorithm>\n"},
                              "avx2.cc: reaches algorithm through src/butterfly/kernel/table/table.h")

    def test_public_headers_keep_third_parties_out_through_any_door(self):
        status, output = self.check({"src/butterfly/base/result.h": "#include <spdlog/spdlog.h>\n"})
        self.assertEqual(status, 1, output)
        self.assertIn("include/butterfly/door.h: pulls <spdlog/spdlog.h> in through src/butterfly/base/result.h", output)

    def test_a_table_with_a_circle_is_refused(self):
        table = TREE["ARCHITECTURE.md"].replace("| views | base |", "| views | kernel |")
        status, output = self.check({"ARCHITECTURE.md": table})
        self.assertEqual(status, 2, output)
        self.assertIn("not above it", output)

    def test_a_missing_table_is_no_pass(self):
        status, output = self.check({"ARCHITECTURE.md": "# Butterfly\n"})
        self.assertEqual(status, 2, output)

    def test_long_files_are_mentioned_but_allowed(self):
        status, output = self.check({"src/butterfly/wire/channel/long.cc": "int a;\n" * 501})
        self.assertEqual(status, 0, output)
        self.assertIn("long.cc has 501 lines", output)


if __name__ == "__main__":
    unittest.main()
