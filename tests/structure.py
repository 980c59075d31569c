#!/usr/bin/env python3
"""Keeps the source tree easy to find one's way in.

    tests/structure.py [--root DIR]

Exit status 0: all rules hold; 1: some do not, each case named on stdout.

The rules:
  folders    no folder of apps, include or src/butterfly has more than 30 files (.h, .cc, .proto)
  circles    no header includes itself, however long the way
  names      no type, and no function with the same parameters, is declared in two headers of one namespace
  constants  no constant of a source file has the name of one in a header, or in another file of its module: compiled
             as one with its neighbours (cmake/butterfly.cmake), the file would give them its own
  functions  no function has more than 70 lines, from the line of its opening brace to the closing one
  scripts    no function, class or method of a Python file is defined twice in one place: the second would take the
             place of the first, unseen
"""

import argparse
import ast
import collections
import pathlib
import re
import sys

FILES_MAX = 30
FUNCTION_LINES_MAX = 70
CONSTANT = re.compile(r"^(?:inline |static )*constexpr [^=\n;(]*?\b(k[A-Z]\w*)\b", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
TOKEN = re.compile(
    r'R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)+\''
    r"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.S | re.M)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace(\s+[\w:]+)?\s*$")
TYPE = re.compile(r"\b(?:class|struct|union|enum(?:\s+class|\s+struct)?)\s+(?:alignas\([^)]*\)\s*|\[\[\w+\]\]\s*)*"
                  r"(\w+)\s*(?:final\s*)?(?::(?!:).*)?$", re.S)
FUNCTION = re.compile(r"(?:^|[\s*&>])([a-z]\w*)\s*\((.*)\)\s*(?:const|noexcept|override|\s)*$", re.S)
NO_FUNCTION = {"if", "for", "while", "switch", "catch", "requires", "static_assert", "alignas", "decltype", "sizeof"}


def blank(text):
    """The text without comments, literals and directives, each line where it was."""
    return TOKEN.sub(lambda found: "\n" * found.group(0).count("\n") or " ", text)


def blocks(text):
    """(head, line of '{', line of '}', heads around it) of every pair of braces; head is what stands before '{'."""
    open_blocks, start, line = [], 0, 1
    for place, sign in enumerate(text):
        if sign == "\n":
            line += 1
        elif sign == "{":
            open_blocks.append((text[start:place].strip(), line))
            start = place + 1
        elif sign == "}":
            if open_blocks:
                head, first = open_blocks.pop()
                yield head, first, line, tuple(outer for outer, _ in open_blocks)
            start = place + 1
        elif sign == ";":
            start = place + 1


def declarations(text):
    """(namespace, statement, line) of what stands at namespace scope outside anonymous namespaces, bodies left out."""
    scopes, start, line, depth_skipped, first = [], 0, 1, 0, 1
    statement = ""
    for place, sign in enumerate(text):
        if sign == "\n":
            line += 1
        if depth_skipped:
            depth_skipped += {"{": 1, "}": -1}.get(sign, 0)
            if not depth_skipped:
                start = place + 1
            continue
        if sign not in "{};":
            continue
        statement = text[start:place].strip()
        first = line
        start = place + 1
        found = NAMESPACE.search(statement) if sign == "{" else None
        if found:
            scopes.append((found.group(1) or " ").strip())
        elif sign == "}":
            if scopes:
                scopes.pop()
        else:
            if sign == "{":
                depth_skipped = 1
            if statement and "" not in scopes:
                yield "::".join(scopes), statement, sign, first
    return


def parameter_types(parameters):
    """`const Plan& plan, int n = 3` -> `constPlan&,int`: as far as needed to tell overloads apart."""
    kept, depth, part = [], 0, ""
    for sign in parameters + ",":
        depth += sign in "<({["
        depth -= sign in ">)}]"
        if sign == "," and depth == 0:
            part = part.split("=")[0].strip()
            part = re.sub(r"(?<=[\s*&>])\w+$", "", part) if re.search(r"[\s*&>]\w+$", part) else part
            kept.append(re.sub(r"\s+", "", part))
            part = ""
        else:
            part += sign
    return ",".join(kept)


class Checker:
    def __init__(self, root):
        self.root = root
        self.violations = []
        self.files = 0
        self.texts = {}

    def name(self, path):
        return path.relative_to(self.root).as_posix()

    def below(self, *places, suffixes=(".h", ".cc")):
        for place in places:
            for path in sorted((self.root / place).rglob("*")):
                if path.suffix in suffixes:
                    yield path

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = blank(path.read_text(encoding="utf-8"))
        return self.texts[path]

    def check_folders(self):
        files_of_all = self.below("apps", "include", "src", suffixes=(".h", ".cc", ".proto"))
        count = collections.Counter(p.parent for p in files_of_all)
        for folder, files in sorted(count.items()):
            if files > FILES_MAX:
                self.violations.append(f"{self.name(folder)}: has {files} files, {FILES_MAX} at most")

    def included(self, path):
        for header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            for base in ("include", "src"):
                if (self.root / base / header).is_file():
                    yield self.root / base / header

    def check_circles(self):
        done = set()

        def visit(path, way):
            if path in way:
                circle = [self.name(p) for p in way[way.index(path):] + [path]]
                self.violations.append(f"{circle[0]}: includes itself: {' -> '.join(circle)}")
            elif path not in done:
                for other in self.included(path):
                    visit(other, way + [path])
                done.add(path)

        for path in self.below("include", "src", suffixes=(".h",)):
            visit(path, [])

    def check_names(self):
        found = collections.defaultdict(dict)
        for path in self.below("include", "src", suffixes=(".h",)):
            for namespace, statement, end, line in declarations(self.text(path)):
                statement = re.sub(r"^template\s*<.*?>\s*(?=class|struct)", "", statement, flags=re.S)
                kind = TYPE.search(statement) if "(" not in statement.split(":")[0] else None
                if kind and (end == "{"):
                    key = (namespace, kind.group(1))
                elif (call := FUNCTION.search(statement)) and call.group(1) not in NO_FUNCTION:
                    if "=" in statement[:call.start(1)] or "operator" in statement:
                        continue
                    key = (namespace, f"{call.group(1)}({parameter_types(call.group(2))})")
                else:
                    continue
                found[key].setdefault(path, line)
        for (namespace, name), places in sorted(found.items()):
            if len(places) > 1:
                first, *others = sorted(places)
                for other in others:
                    self.violations.append(f"{self.name(other)}:{places[other]}: {namespace}::{name} is declared in "
                                           f"{self.name(first)}:{places[first]} too")

    def check_constants(self):
        known = {}
        for path in self.below("include", "src", suffixes=(".h",)):
            for name in CONSTANT.findall(self.text(path)):
                known.setdefault(name, path)
        for path in self.below("apps", "src", suffixes=(".cc",)):
            for name in CONSTANT.findall(self.text(path)):
                if name in known:
                    self.violations.append(f"{self.name(path)}: {name} is a constant of {self.name(known[name])}, too")
        # Files of a module may be compiled as one. Those of one instruction set and its neighbours never are.
        in_module = {}
        for path in self.below("apps", "src", suffixes=(".cc",)):
            places = pathlib.PurePath(self.name(path)).parts
            module = places[:3] if places[0] == "src" else places[:2]
            if path.stem.endswith(("_test", "_bench")) or module[-1] in ("kernel", "tensor"):
                continue
            for name in CONSTANT.findall(self.text(path)):
                other = in_module.setdefault((module, name), path)
                if other != path:
                    self.violations.append(f"{self.name(path)}: {name} is a constant of {self.name(other)}, too")

    def check_functions(self):
        for path in self.below("apps", "examples", "include", "src", "tests"):
            self.files += 1
            for head, first, last, around in blocks(self.text(path)):
                lines = last - first + 1
                if lines <= FUNCTION_LINES_MAX or not self.is_function(head, around):
                    continue
                called = re.findall(r"([~\w:]+)\s*\(", head)
                name = called[0] if called else head[-40:]
                self.violations.append(f"{self.name(path)}:{first}: {name} has {lines} lines, {FUNCTION_LINES_MAX} at most")

    def check_scripts(self):
        for path in self.below("examples", "scripts", "tests", "tools", suffixes=(".py",)):
            self.files += 1
            for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(scope, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    continue
                known = set()
                for node in scope.body:
                    if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.decorator_list:
                        continue
                    if node.name in known:
                        self.violations.append(f"{self.name(path)}:{node.lineno}: {node.name} is defined twice")
                    known.add(node.name)

    @staticmethod
    def is_function(head, around):
        """Whether such a block is a function's body: not a namespace, a type or a part of another function."""
        outside = [h for h in around if not NAMESPACE.search(h) and not TYPE.search(h) and h != 'extern']
        return ")" in head and not outside and not TYPE.search(head) and not NAMESPACE.search(head)

    def run(self):
        self.check_folders()
        self.check_circles()
        self.check_names()
        self.check_constants()
        self.check_functions()
        self.check_scripts()
        return self.violations


def main():
    parser = argparse.ArgumentParser(description="Keeps the source tree easy to find one's way in.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    checker = Checker(parser.parse_args().root.resolve())
    violations = checker.run()
    for violation in violations:
        print(violation)
    print(f"structure: {checker.files} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
