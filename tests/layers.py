#!/usr/bin/env python3
"""Holds the code against the tables of modules and sub-modules in ARCHITECTURE.md.

    tests/layers.py [--root DIR]

Exit status 0: every include is allowed; 1: some are not, each named on stdout; 2: the table itself cannot be read.

The rules, in the order they are checked:
  table    rows are unique, every module lies above what it includes, and modules, folders and CMake's DEPS agree
  modules    a file in src/butterfly/<module>/ includes butterfly/<other>/ only where the table allows it
  public   include/butterfly/ does not pull a third-party header in, except fmt and tl::expected
  inside   a file in src/butterfly/<module>/<sub-module>/ includes another sub-module of its module only where the second
           table allows it, which has no circles; tests may include every sub-module of their module
  isa      files compiled for an instruction set include intrinsics, <cstddef>, <cstdint> and headers of their own
           module that, all the way down, include nothing else: the linker merges inline functions of the same name,
           and must not find one compiled for a better CPU
  length   warned about only: files over 500 lines
"""

import argparse
import pathlib
import re
import sys

LINES_MAX = 500
OPEN_TO_ALL = {"base", "trace"}
ISA_FILE = re.compile(r"(^|_)(sse\w*|avx\w*|amx\w*|neon\w*|sve\w*)\.cc$")
ISA_HEADERS = {"immintrin.h", "arm_neon.h", "arm_sve.h"}
PLAIN_HEADERS = {"cstddef", "cstdint"}  # declare types; nothing in them is ever emitted
LIGHT_THIRD_PARTY = ("fmt/", "tl/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SUBMODULE_ROW = re.compile(r"^\|\s*`(\w+(?:/[\w.]+)+)`\s*\|[^|]*\|([^|]*)\|\s*$", re.M)
TABLE_ROW = re.compile(r"^\|\s*(\d+)\s*\|\s*`(\w+)`\s*\|[^|]*\|([^|]*)\|\s*$", re.M)


class BrokenTable(Exception):
    pass


def includes_of(path):
    """(quote, header) of each #include, in order."""
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def read_table(architecture):
    """{module: (row, modules it may include directly)} from lines like | 3 | `tensor` | what it is | machine |."""
    modules = {}
    for row, module, allowed in TABLE_ROW.findall(architecture):
        if module in modules:
            raise BrokenTable(f"the table has `{module}` twice")
        modules[module] = (int(row), {name for name in re.findall(r"\w+", allowed)})
    if not modules:
        raise BrokenTable("ARCHITECTURE.md has no table of modules")
    for module, (row, allowed) in modules.items():
        for other in allowed:
            if other not in modules:
                raise BrokenTable(f"`{module}` may include `{other}`, which has no row of its own")
            if modules[other][0] >= row:
                raise BrokenTable(f"`{module}` in row {row} may include `{other}` in row {modules[other][0]}, not above it")
    return modules


def read_submodules(architecture):
    """{module: {sub-module: sub-modules it may include directly}} from lines like | `wire/tcp` | what it is | channel |."""
    found = {}
    for path, allowed in SUBMODULE_ROW.findall(architecture):
        module, name = path.split("/", 1)
        if name in found.setdefault(module, {}):
            raise BrokenTable(f"the table has `{path}` twice")
        found[module][name] = set(re.findall(r"[\w/]+", allowed))
    for module, rows in found.items():
        for name, allowed in rows.items():
            if unknown := sorted(allowed - set(rows)):
                raise BrokenTable(f"`{module}/{name}` may include `{unknown[0]}`, which has no row in `{module}`")
            if name in set().union(*(reachable_inside(rows, other) for other in allowed)):
                raise BrokenTable(f"`{module}/{name}` may include itself by way of others: the table has a circle")
    return found


def reachable_inside(rows, name):
    """`name`, what its row names and what those name in turn."""
    found, pending = set(), [name]
    while pending:
        if (current := pending.pop()) not in found:
            found.add(current)
            pending.extend(rows[current])
    return found


def reachable(modules, module):
    """Everything `module` may include: itself, what it names, what those name, and the modules open to all."""
    row = modules[module][0]
    found = {module} | {name for name in OPEN_TO_ALL if name in modules and modules[name][0] < row}
    pending = list(modules[module][1])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(modules[name][1])
    return found


class Checker:
    def __init__(self, root):
        self.root = root
        self.source = root / "src" / "butterfly"
        architecture = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
        self.modules = read_table(architecture)
        self.submodules = read_submodules(architecture)
        self.violations = []
        self.files = 0

    def complain(self, path, message):
        self.violations.append(f"{path.relative_to(self.root)}: {message}")

    def files_below(self, *places):
        for place in places:
            for path in sorted((self.root / place).rglob("*")):
                if path.suffix in (".h", ".cc"):
                    yield path

    def check_folders(self):
        folders = {path.name for path in self.source.iterdir() if path.is_dir()}
        for missing in sorted(set(self.modules) - folders):
            self.violations.append(f"ARCHITECTURE.md: module `{missing}` has no folder src/butterfly/{missing}")
        for extra in sorted(folders - set(self.modules)):
            self.violations.append(f"src/butterfly/{extra}: has no row in the table of ARCHITECTURE.md")
        for module in sorted(folders & set(self.modules)):
            lists = self.source / module / "CMakeLists.txt"
            if not lists.exists():
                continue
            call = re.search(r"butterfly_module\(\s*" + module + r"\b([^)]*)\)", lists.read_text(encoding="utf-8"))
            deps = re.search(r"\bDEPS\s+([a-z_\s]+)", call.group(1)) if call else None
            for dep in deps.group(1).split() if deps else []:
                if dep not in reachable(self.modules, module):
                    self.complain(lists, f"DEPS names `{dep}`, which the table does not allow `{module}`")

    def check_modules(self):
        for path in self.files_below("src/butterfly"):
            module = path.relative_to(self.source).parts[0]
            if module not in self.modules:
                continue
            self.files += 1
            allowed = reachable(self.modules, module)
            for _, header in includes_of(path):
                parts = header.split("/")
                if parts[0] == ".." or "/../" in header:
                    self.complain(path, f'includes "{header}"; name headers from butterfly/ on')
                elif parts[0] != "butterfly":
                    continue
                elif len(parts) == 2 and module != "api":
                    self.complain(path, f'includes "{header}"; the public API is built on the modules, not below them')
                elif len(parts) > 2 and parts[1] not in allowed:
                    self.complain(path, f'includes "{header}"; `{module}` may include {", ".join(sorted(allowed))}')

    def check_inside(self):
        for module, rows in self.submodules.items():
            folders = {p.parent.relative_to(self.source / module).as_posix()
                       for p in self.files_below(f"src/butterfly/{module}")}
            for missing in sorted(set(rows) - folders):
                self.violations.append(f"ARCHITECTURE.md: `{module}/{missing}` has no files")
            for extra in sorted(folders - set(rows)):
                self.violations.append(f"src/butterfly/{module}/{extra}: has no row in the table of sub-modules")
            for name in sorted(folders & set(rows)):
                allowed = reachable_inside(rows, name)
                for path in sorted((self.source / module / name).iterdir()):
                    if path.suffix in (".h", ".cc") and "_test." not in path.name:
                        self.check_includes_inside(path, module, rows, allowed)
        for path in self.source.glob("*/*/*.h"):
            if path.relative_to(self.source).parts[0] not in self.submodules:
                self.complain(path, "is in a sub-module without a row in the table of sub-modules")

    def check_includes_inside(self, path, module, rows, allowed):
        for _, header in includes_of(path):
            if header.startswith(f"butterfly/{module}/"):
                target = header.split("/", 2)[2].rpartition("/")[0]
                if target in rows and target not in allowed:
                    self.complain(path, f'includes "{header}"; its sub-module may include {", ".join(sorted(allowed))}')

    def resolve(self, header):
        for base in (self.root / "include", self.root / "src"):
            if (base / header).is_file():
                return base / header
        return None

    def closure(self, path):
        """(file, quote, header) of every include reached from `path` through headers of this repository."""
        seen, pending = set(), [path]
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            for quote, header in includes_of(current):
                yield current, quote, header
                target = self.resolve(header)
                if target:
                    pending.append(target)

    def check_public(self):
        for path in self.files_below("include"):
            self.files += 1
            for where, _, header in self.closure(path):
                third_party = "/" in header and not header.startswith(("butterfly/",) + LIGHT_THIRD_PARTY)
                if third_party or header in ISA_HEADERS or header == "hwloc.h" or header == "pcre2.h":
                    self.complain(path, f"pulls <{header}> in through {where.relative_to(self.root)}")

    def check_isa(self):
        for path in self.files_below("src/butterfly"):
            if not ISA_FILE.search(path.name):
                continue
            home = f"butterfly/{path.relative_to(self.source).parts[0]}/"
            for where, _, header in self.closure(path):
                if header not in ISA_HEADERS | PLAIN_HEADERS and not header.startswith(home):
                    self.complain(path, f"reaches {header} through {where.relative_to(self.root)}; "
                                  f"only {home} and intrinsics are safe in a file with its own instruction set")

    def warn_about_length(self):
        for path in self.files_below("apps", "examples", "include", "src", "tests", "tools"):
            lines = path.read_text(encoding="utf-8", errors="replace").count("\n")
            if lines > LINES_MAX:
                print(f"warning: {path.relative_to(self.root)} has {lines} lines; {LINES_MAX} are the aim")

    def run(self):
        self.check_folders()
        self.check_modules()
        self.check_inside()
        self.check_public()
        self.check_isa()
        self.warn_about_length()
        return self.violations


def main():
    parser = argparse.ArgumentParser(description="Holds the includes against the modules of ARCHITECTURE.md.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    try:
        checker = Checker(root)
    except (OSError, BrokenTable) as error:
        print(f"layers: {error}")
        return 2
    violations = checker.run()
    for violation in violations:
        print(violation)
    print(f"layers: {len(checker.modules)} modules, {checker.files} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
