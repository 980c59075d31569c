#!/usr/bin/env python3
"""The docs check finds stale output, failing commands and dead links. The program is a stand-in that echoes."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parent / "docs.py"
COMMAND = "<!-- run -->\n```sh\nbuild/release/bin/butterfly once upon\n```\n"


def shown(text):
    return f"\n<!-- prints -->\n```text\n{text}```\n"


class Docs(unittest.TestCase):
    def check(self, readme):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "models").mkdir()
            (root / "README.md").write_text(readme)
            (root / "program").write_text('#!/bin/sh\necho "$@"\n[ "$1" != fail ]\n')
            (root / "program").chmod(0o755)
            run = subprocess.run([sys.executable, str(CHECKER), "--root", folder, "--butterfly", str(root / "program")],
                                 capture_output=True, text=True, check=False, timeout=60)
            return run.returncode, run.stdout + run.stderr

    def test_true_output_passes(self):
        status, output = self.check(COMMAND + shown("once upon\n"))
        self.assertEqual(status, 0, output)

    def test_stale_output_is_found(self):
        status, output = self.check(COMMAND + shown("once again\n"))
        self.assertEqual(status, 1, output)
        self.assertIn("but the program prints\nonce upon", output)

    def test_a_failing_command_is_found(self):
        status, output = self.check(COMMAND.replace("once", "fail"))
        self.assertEqual(status, 1, output)
        self.assertIn("status 1", output)

    def test_a_dead_link_is_found(self):
        status, output = self.check(COMMAND + "[there](models) [nowhere](attic/page.md)\n")
        self.assertEqual(status, 1, output)
        self.assertIn("attic/page.md leads nowhere", output)
        self.assertIn("1 complaints", output)

    def test_a_page_that_runs_nothing_is_no_pass(self):
        status, output = self.check("# Title\n")
        self.assertEqual(status, 1, output)


if __name__ == "__main__":
    unittest.main()
