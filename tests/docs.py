#!/usr/bin/env python3
"""What the documentation says is run and compared.

    tests/docs.py --butterfly BINARY [--root DIR]

A fenced block that follows the line <!-- run --> is run by bash, in an empty folder that has the repository's models/
and the program as build/release/bin/butterfly; it must end with status 0. A fenced block that follows <!-- prints -->
must be what the block run before it wrote to stdout, to the byte. Every relative link of every page must lead somewhere.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

SECONDS_MAX = 120
BLOCK = re.compile(r"^<!-- (run|prints) -->\n+```\w*\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def pages(root):
    return sorted(path for path in root.rglob("*.md") if "build" not in path.relative_to(root).parts)


def broken_links(root):
    for page in pages(root):
        for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (page.parent / target.split("#")[0]).exists():
                yield f"{page.relative_to(root)}: the link {target} leads nowhere"


def run_blocks(page, root, binary):
    """(blocks run or compared, complaints)"""
    complaints, stdout, count = [], "", 0
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "build/release/bin").mkdir(parents=True)
        (place / "build/release/bin/butterfly").symlink_to(binary)
        (place / "models").symlink_to(root / "models")
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            count += 1
            if kind == "prints":
                if text != stdout:
                    complaints.append(f"{page.name} shows\n{text}but the program prints\n{stdout}")
                continue
            try:
                run = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=place, capture_output=True,
                                     text=True, check=False, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                complaints.append(f"{page.name}: longer than {SECONDS_MAX} s:\n{text}")
                continue
            stdout = run.stdout
            if run.returncode != 0:
                complaints.append(f"{page.name}: status {run.returncode} from\n{text}{run.stderr}")
    return count, complaints


def main():
    parser = argparse.ArgumentParser(description="Runs what the documentation says.")
    parser.add_argument("--butterfly", type=pathlib.Path, required=True)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    root = options.root.resolve()
    complaints = list(broken_links(root))
    blocks, from_blocks = run_blocks(root / "README.md", root, options.butterfly.resolve())
    complaints += from_blocks
    if blocks == 0:
        complaints.append("README.md has no block that is run")
    for complaint in complaints:
        print(complaint)
    print(f"docs: {len(pages(root))} pages, {blocks} blocks, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
