"""The demo model's text, cut: the first 90 % of the characters in parts that begin with a speech, the last 10 % whole.

A text's first token is the begin token, so every part teaches it once. Shared by make_demo_model.py and
demo_recipe_peer.py."""

from pathlib import Path

PART_CHARACTERS = 10_000


def cut(text_path: Path, out: Path):
    """Writes out/part-*.txt and out/validation.txt; returns (parts, validation)."""
    text = text_path.read_text(encoding="utf-8")
    split = len(text) * 9 // 10
    out.mkdir(parents=True, exist_ok=True)
    parts, begin = [], 0
    while begin < split:
        border = text.find("\n\n", begin + PART_CHARACTERS, split)
        end = split if border < 0 else border + 2
        parts.append(out / f"part-{len(parts):03}.txt")
        parts[-1].write_text(text[begin:end], encoding="utf-8")
        begin = end
    validation = out / "validation.txt"
    validation.write_text(text[split:], encoding="utf-8")
    return parts, validation
