#!/usr/bin/env python3
"""tools/check_headers.py names headers that do not compile alone, and only those."""

import contextlib
import io
import pathlib
import platform
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import check_headers  # noqa: E402

COMMANDS = '[{"command": "ccache c++ -DANSWER=42 -isystem %s -o x.o -c x.cc", "file": "x.cc", "directory": "."}]'


class CheckHeaders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "src").mkdir()
        (self.root / "generated").mkdir()
        (self.root / "generated" / "made.h").write_text("using Made = int;\n")
        build = self.root / "build" / "release"
        build.mkdir(parents=True)
        (build / "compile_commands.json").write_text(COMMANDS % (self.root / "generated"))

    def check(self, **headers):
        """The exit status and what is printed, of headers by name and text."""
        for name, text in headers.items():
            (self.root / "src" / f"{name}.h").write_text("#pragma once\n" + text)
        said = io.StringIO()
        with mock.patch.object(check_headers, "ROOT", self.root), mock.patch.object(sys, "argv", ["x"]), \
                contextlib.redirect_stdout(said):
            return check_headers.main(), said.getvalue()

    def test_headers_that_compile_alone_pass(self):
        status, said = self.check(whole="#include <string>\nstd::string name();\n",
                                  flags="#include <made.h>\nstatic_assert(ANSWER == 42);\nMade made();\n")
        self.assertEqual((status, said), (0, "2 of 2 headers compile alone, 0 do not\n"))

    def test_a_header_that_needs_another_is_named(self):
        status, said = self.check(whole="#include <string>\nstd::string name();\n", part="std::string name();\n")
        self.assertEqual(status, 1)
        self.assertIn("src/part.h does not compile alone: ", said)
        self.assertNotIn("whole.h", said)
        self.assertTrue(said.endswith("\n1 of 2 headers compile alone, 1 do not\n"), said)

    @unittest.skipUnless(platform.machine() in ("x86_64", "AMD64"), "vectors of x86")
    def test_files_of_instruction_sets_know_their_vectors(self):
        status, _ = self.check(vectors_inl="#include <immintrin.h>\ninline __m512 one() { return _mm512_set1_ps(1); }\n")
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
