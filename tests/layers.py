#!/usr/bin/env python3
"""Holds the code against the table of rooms in ARCHITECTURE.md.

    tests/layers.py [--root DIR]

Exit status 0: every include is allowed; 1: some are not, each named on stdout; 2: the table itself cannot be read.

The rules, in the order they are checked:
  table    rows are unique, every room lies above what it includes, and rooms, folders and CMake's DEPS agree
  rooms    a file in src/butterfly/<room>/ includes butterfly/<other>/ only where the table allows it
  public   include/butterfly/ does not pull a third-party header in, except fmt and tl::expected
  isa      files compiled for an instruction set include intrinsics, <cstddef>, <cstdint> and headers of their own
           room that, all the way down, include nothing else: the linker merges inline functions of the same name,
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
TABLE_ROW = re.compile(r"^\|\s*(\d+)\s*\|\s*`(\w+)`\s*\|[^|]*\|([^|]*)\|\s*$", re.M)


class BrokenTable(Exception):
    pass


def includes_of(path):
    """(quote, header) of each #include, in order."""
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def read_table(architecture):
    """{room: (row, rooms it may include directly)} from lines like | 3 | `tensor` | what it is | machine |."""
    rooms = {}
    for row, room, allowed in TABLE_ROW.findall(architecture):
        if room in rooms:
            raise BrokenTable(f"the table has `{room}` twice")
        rooms[room] = (int(row), {name for name in re.findall(r"\w+", allowed)})
    if not rooms:
        raise BrokenTable("ARCHITECTURE.md has no table of rooms")
    for room, (row, allowed) in rooms.items():
        for other in allowed:
            if other not in rooms:
                raise BrokenTable(f"`{room}` may include `{other}`, which has no row of its own")
            if rooms[other][0] >= row:
                raise BrokenTable(f"`{room}` in row {row} may include `{other}` in row {rooms[other][0]}, not above it")
    return rooms


def reachable(rooms, room):
    """Everything `room` may include: itself, what it names, what those name, and the rooms open to all."""
    row = rooms[room][0]
    found = {room} | {name for name in OPEN_TO_ALL if name in rooms and rooms[name][0] < row}
    pending = list(rooms[room][1])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(rooms[name][1])
    return found


class Checker:
    def __init__(self, root):
        self.root = root
        self.source = root / "src" / "butterfly"
        self.rooms = read_table((root / "ARCHITECTURE.md").read_text(encoding="utf-8"))
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
        for missing in sorted(set(self.rooms) - folders):
            self.violations.append(f"ARCHITECTURE.md: room `{missing}` has no folder src/butterfly/{missing}")
        for extra in sorted(folders - set(self.rooms)):
            self.violations.append(f"src/butterfly/{extra}: has no row in the table of ARCHITECTURE.md")
        for room in sorted(folders & set(self.rooms)):
            lists = self.source / room / "CMakeLists.txt"
            if not lists.exists():
                continue
            call = re.search(r"butterfly_module\(\s*" + room + r"\b([^)]*)\)", lists.read_text(encoding="utf-8"))
            deps = re.search(r"\bDEPS\s+([a-z_\s]+)", call.group(1)) if call else None
            for dep in deps.group(1).split() if deps else []:
                if dep not in reachable(self.rooms, room):
                    self.complain(lists, f"DEPS names `{dep}`, which the table does not allow `{room}`")

    def check_rooms(self):
        for path in self.files_below("src/butterfly"):
            room = path.relative_to(self.source).parts[0]
            if room not in self.rooms:
                continue
            self.files += 1
            allowed = reachable(self.rooms, room)
            for _, header in includes_of(path):
                parts = header.split("/")
                if parts[0] == ".." or "/../" in header:
                    self.complain(path, f'includes "{header}"; name headers from butterfly/ on')
                elif parts[0] != "butterfly":
                    continue
                elif len(parts) == 2 and room != "api":
                    self.complain(path, f'includes "{header}"; the public API is built on the rooms, not below them')
                elif len(parts) > 2 and parts[1] not in allowed:
                    self.complain(path, f'includes "{header}"; `{room}` may include {", ".join(sorted(allowed))}')

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
            home = path.parent.relative_to(self.root / "src").as_posix() + "/"
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
        self.check_rooms()
        self.check_public()
        self.check_isa()
        self.warn_about_length()
        return self.violations


def main():
    parser = argparse.ArgumentParser(description="Holds the includes against the rooms of ARCHITECTURE.md.")
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
    print(f"layers: {len(checker.rooms)} rooms, {checker.files} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
