#!/usr/bin/env python3
"""Holds code and pages against a list of words that have a better one.

    tests/words.py [--root DIR]

Exit status 0: none of the words is used; 1: some are, each named with file, line and replacement.

One idea has one name, the one that the field gives it; and sentences are such as a colleague would say.
"""

import argparse
import pathlib
import re
import sys
from typing import NamedTuple

PLACES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "apps", "cmake", "docs", "examples",
          "include", "scripts", "src", "tests", "tools")
KINDS = {"prose": {".md"}, "code": {".cc", ".h", ".proto", ".py", ".sh", ".txt", ".cmake", ".toml"}}
HERE = ("tests/words.py", "tests/words_test.py")


class Word(NamedTuple):
    pattern: str            # case is ignored
    instead: str
    kinds: tuple = ("prose", "code")
    allowed: tuple = ()     # beginnings of paths where the word is right
    right: str = ""         # what a line may say around it


WORDS = [
    # The field's words.
    Word(r"\b(this|the|every|each|no|one|another|other|room's|which|of|a) rooms?\b|\brooms\b", "module",
         allowed=("examples/clusters/",), right=r"the room (for|that)|no room( (for|that|left)|$)"),
    Word(r"\bkLanes\b|\bLane(Range|Borders)\b|\bcanonical lanes?\b", "reduction slice"),
    Word(r"\blanes?\b", "reduction slice", kinds=("prose",), allowed=("docs/benchmarks.md",)),
    Word(r"\blanes? of (a|the) sums?\b", "reduction slice"),
    Word(r"\bmatrix products?\b|\bproducts? of matrices\b|\bProductRates?\b|\bproduct_rates?\b", "matmul"),
    Word(r"\bends of (a|the) models?\b", "embedding and LM head"),
    Word(r"\broster", "WorkerRegistry"),
    Word(r"\bvisitors?\b", "StatusServer, or a status client"),
    Word(r"\bweight[ _]?givers?\b", "WeightServer"),
    Word(r"\btell_all\b", "all_gather"),
    Word(r"\brebalance[ _]?desks?\b", "RebalanceQueue"),
    Word(r"\bdrift(s|ed|ing|_\w+|\.h)?\b", "straggler; to diverge"),
    Word(r"\bgreet(s|ed|ing|ings|_\w+)?\b", "handshake"),
    Word(r"\b(bury|buries|buried)\b", "terminate"),
    Word(r"\bexile[sd]?\b", "quarantine"),
    Word(r"\bknock(s|ed|ing)?\b", "connect"),
    Word(r"\bhalls?\b", "control block"),
    Word(r"\bseats?\b", "slot"),
    Word(r"\bcompanions?\b", "peer"),
    Word(r"\bRankNews\b|\brank_news\b", "RankMessage"),
    Word(r"\bow(e|es|ed)\b", "error-feedback residual",
         allowed=("src/butterfly/wire/channel/ack_watch", "src/butterfly/wire/tcp/tcp_channel.cc")),
    Word(r"\bsoften\w*", "softmax_segment"),
    # Plain English.
    Word(r"whoever", "the one who, a member that"),
    Word(r"somebody", "a user, another thread, a member"),
    Word(r"\bso many\b", "this number of"),
]


def kind_of(path):
    return next((kind for kind, suffixes in KINDS.items() if path.suffix in suffixes), None)


def main():
    parser = argparse.ArgumentParser(description="Holds code and pages against a list of words with a better one.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    words = [(word, re.compile(word.pattern, re.I), re.compile(word.right, re.I) if word.right else None)
             for word in WORDS]
    found = files = 0
    for place in PLACES:
        for path in sorted([root / place] if (root / place).is_file() else (root / place).rglob("*")):
            name, kind = path.relative_to(root).as_posix(), kind_of(path)
            if kind is None or name in HERE or not path.is_file():
                continue
            files += 1
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for word, pattern, right in words:
                    if kind not in word.kinds or name.startswith(word.allowed or ("\0",)):
                        continue
                    hit = pattern.search(right.sub("", line) if right else line)
                    if hit:
                        found += 1
                        print(f'{name}:{number}: "{hit.group(0)}"; say: {word.instead}')
    print(f"words: {files} files, {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
