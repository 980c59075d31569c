#!/usr/bin/env python3
"""The structure check finds what it is there to find: each test breaks one rule in a small tree of its own."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parent / "structure.py"
LONG = "  f();\n" * 70


class Structure(unittest.TestCase):
    def check(self, files, below="src/butterfly"):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / below / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            run = subprocess.run([sys.executable, str(CHECKER), "--root", folder], capture_output=True, text=True,
                                 check=False, timeout=60)
            return run.returncode, run.stdout + run.stderr

    def expect(self, files, *words, below="src/butterfly"):
        status, output = self.check(files, below)
        self.assertEqual(status, 1 if words else 0, output)
        self.assertIn(f"{1 if words else 0} violations", output)
        for word in words:
            self.assertIn(word, output)

    def test_thirty_files_are_enough_for_a_folder(self):
        files = {f"wire/a{i}.h": "" for i in range(30)}
        self.expect(files)
        self.expect({**files, "wire/control.proto": ""}, "src/butterfly/wire: has 31 files, 30 at most")
        self.expect({f"a{i}.cc": "" for i in range(31)}, "apps/butterfly: has 31 files, 30 at most",
                    below="apps/butterfly")

    def test_a_header_that_includes_itself_by_way_of_others_is_named(self):
        self.expect({"wire/a.h": '#include "butterfly/wire/b.h"\n', "wire/b.h": '#include "butterfly/base/c.h"\n',
                     "base/c.h": '#include "butterfly/wire/a.h"\n'}, "includes itself:")

    def test_a_name_defined_twice_in_a_script_is_named(self):
        self.expect({"a.py": "def f():\n  pass\nclass A:\n  def f(self):\n    pass\n"}, below="tools")
        self.expect({"a.py": "def f():\n  pass\ndef f(one):\n  pass\n"}, "tools/a.py:3: f is defined twice", below="tools")
        self.expect({"a.py": "class A:\n  def f(self):\n    pass\n  def f(self, one):\n    pass\n"},
                    "tests/a.py:4: f is defined twice", below="tests")

    def test_a_type_in_two_headers_is_named(self):
        self.expect({"a/a.h": "namespace n {\nstruct Range { int a; };\n}\n",
                     "b/b.h": "namespace n {\nclass Range final : public Base { int b; };\n}\n"},
                    "b/b.h:2: n::Range is declared in src/butterfly/a/a.h:2 too")

    def test_a_function_with_the_same_parameters_in_two_headers_is_named(self):
        self.expect({"a/a.h": "namespace n {\nint size(const A& a, int n = 3);\n}\n",
                     "b/b.h": "namespace n {\nint size(const A& other, int count);\n}\n"}, "n::size(constA&,int)")

    def test_overloads_declarations_ahead_and_hidden_names_are_fine(self):
        self.expect({"a/a.h": "namespace n {\nclass Range;\nint size(const A& a);\nstruct S { struct Options {}; };\n}\n",
                     "b/b.h": "namespace n {\nclass Range { int a; };\nint size(const B& b);\n"
                              "struct T { struct Options {}; };\n}\n",
                     "c/c.cc": "namespace n {\nnamespace {\nclass Range {};\n}\n}\n"})

    def test_a_constant_of_a_source_file_and_of_a_header_is_named(self):
        self.expect({"a/a.h": "namespace n {\ninline constexpr int kMost = 3;\n}\n",
                     "b/b.cc": "namespace n {\nnamespace {\nconstexpr long kMost = 4;\n}\n}\n"},
                    "kMost is a constant of")

    def test_a_constant_of_two_source_files_of_a_module_is_named(self):
        of = "namespace n {\nnamespace {\nconstexpr long kMost = 4;\n}\n}\n"
        self.expect({"a/b/b.cc": of, "a/c/c.cc": of}, "c.cc: kMost is a constant of")
        self.expect({"a/b.cc": of, "c/c.cc": of, "a/b_test.cc": of})

    def test_a_long_function_is_named_by_its_line(self):
        self.expect({"a/a.cc": "namespace n {\n\nint A::f() {\n" + LONG + "}\n}\n"}, "a.cc:3: A::f has 72 lines")

    def test_braces_in_comments_and_texts_do_not_count(self):
        self.expect({"a/a.cc": "int f() {\n  g(\"{\", '{');  // {\n}\n" + "int x;\n" * 80 + "int g() {}\n"})

    def test_long_types_and_namespaces_are_fine(self):
        self.expect({"a/a.h": "namespace n {\nstruct A {\n" + "  int f() { return 1; }\n" * 80 + "};\n}\n"})


if __name__ == "__main__":
    unittest.main()
