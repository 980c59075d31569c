#!/usr/bin/env python3
"""Makes the demo model from one plain-text file, with the program butterfly alone.

    python3 tools/make_demo_model.py path/to/tinyshakespeare.txt OUT

OUT then holds tokenizer.json, trained.gguf (F32), demo.gguf (F16), log.jsonl, loss.svg, loss.csv, result.json and the cut text (data/). The
first 90 % of the text train the tokenizer and the model, the last 10 % only measure. Flags that this script does not
know go to `butterfly train`. Needs Python's own library only."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from demo_data import cut
from loss_curve import curves, write_csv, write_svg

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="UTF-8 text file")
    parser.add_argument("out", type=Path, help="directory to write; created if missing")
    parser.add_argument("--steps", type=int, help="instead of those of the recipe (its schedule shrinks with them)")
    parser.add_argument("--recipe", type=Path, default=ROOT / "examples/training/demo.toml")
    parser.add_argument("--program", default=os.environ.get("BUTTERFLY_PROGRAM", ROOT / "build/release/bin/butterfly"))
    return parser.parse_known_args()


def main():
    arguments, more_flags = parse_arguments()
    out, program = arguments.out, str(arguments.program)
    parts, validation = cut(arguments.text, out / "data")
    tokenizer, log, trained = out / "tokenizer.json", out / "log.jsonl", out / "trained.gguf"
    log.unlink(missing_ok=True)
    subprocess.run([program, "tokenize", "--train", *parts, "--vocab", "2048", "--out", tokenizer], check=True)
    run = [program, "train", "-c", arguments.recipe, "--data", ",".join(map(str, parts)), "--tokenizer", tokenizer,
           "--data.validation_file", validation, "--out", trained, "--log-file", log, "--json"]
    if arguments.steps:
        run += ["--steps", arguments.steps, "--warmup", max(1, arguments.steps * 3 // 16)]
    run += more_flags
    print("$ " + " ".join(str(word) if len(str(word)) < 200 else f"{parts[0]},..." for word in run), file=sys.stderr)
    ended = subprocess.run([str(word) for word in run], stdout=subprocess.PIPE, text=True)
    if not ended.stdout:
        raise SystemExit(ended.returncode)
    (out / "result.json").write_text(ended.stdout)
    subprocess.run([program, "convert", trained, out / "demo.gguf", "--type", "f16"], check=True)
    training, held_out = curves(log)
    write_csv(out / "loss.csv", training, held_out)
    write_svg(out / "loss.svg", training, held_out)
    best_step, best = min(held_out, key=lambda point: point[1])
    result = json.loads(ended.stdout)
    verdict = "valid" if result["valid"] else "INVALID"
    print(f"validation loss {held_out[-1][1]:.4f} at the end, best {best:.4f} at step {best_step}; audit: {verdict}")
    raise SystemExit(ended.returncode)


if __name__ == "__main__":
    main()
