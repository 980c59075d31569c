#!/usr/bin/env python3
"""The words check finds what it is there to find, and leaves alone what is right."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parent / "words.py"


class Words(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, str(CHECKER), "--root", folder], capture_output=True, text=True,
                                 check=False, timeout=60)
            return run.returncode, run.stdout + run.stderr

    def test_a_listed_word_is_named_by_file_line_and_replacement(self):
        for name, line in (("README.md", "Whoever reads this"), ("src/a.cc", "// a thread of so many"),
                           ("src/a.h", "constexpr int kLanes = 8;"), ("docs/a.md", "the rooms of the code"),
                           ("src/a.cc", "// what this room knows"), ("tests/a.py", "# somebody asks"),
                           ("docs/a.md", "a member's lanes"), ("src/a.proto", "// what a rank owes"),
                           ("src/a.cc", "int greeting = 0;"), ("README.md", "a matrix product")):
            status, output = self.check({name: "fine\n" + line + "\n"})
            self.assertEqual(status, 1, line + output)
            self.assertIn(f"{name}:2: ", output)
            self.assertIn("; say: ", output)
            self.assertIn(" 1 violations", output)

    def test_words_that_are_right_where_they_stand_pass(self):
        status, output = self.check({
            "src/butterfly/kernel/gemm/gemm.cc": "// 16 lanes of a vector\n",
            "src/a.cc": "std::size_t room = 0;  // room for the next one\n",
            "src/butterfly/wire/channel/ack_watch.h": "// an acknowledgement is owed\n",
            "docs/a.md": "the dot product of a block\n",
            "examples/clusters/a.toml": "# machines in two rooms\n"})
        self.assertEqual(status, 0, output)

    def test_other_files_are_not_read(self):
        status, output = self.check({"docs/a.txt.gz": "whoever", "models/a.md": "whoever", "src/a.bin": "whoever"})
        self.assertEqual(status, 0, output)


if __name__ == "__main__":
    unittest.main()
