#!/usr/bin/env python3
"""Compares `butterfly tokenize` with the programs that the tokenizers come from, on a text of many scripts.

    pip install tokenizers sentencepiece tiktoken
    python3 tools/compare_tokenizers.py [--butterfly build/release/bin/butterfly] [--folder FOLDER] [--bytes N]
                                        [--only NAME...] [--speed ROUNDS]

Makes a text (letters, marks and digits of 15 scripts, emoji, code, long runs of spaces), and tokenizers trained on a
part of it: BPE with every published pattern and with every step that `tokenizers` has, Unigram, WordPiece, WordLevel by
`tokenizers`; BPE, Unigram, characters and words by `sentencepiece`; ranks with each known pattern by `tiktoken`. For
each, the ids of the whole text and what they decode to have to be equal. With --speed both sides encode the text that
often in turns, on one thread, and the medians are printed.

Exit status 0: all equal (and, with --speed, no kind slower); 1: something differs.
"""

import argparse
import base64
import json
import os
import random
import statistics
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SCRIPTS = {
    "latin": [(0x61, 0x7A), (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0xD6), (0xE0, 0xF6), (0x100, 0x17F), (0x1E00, 0x1EFF)],
    "greek": [(0x391, 0x3A1), (0x3B1, 0x3C9), (0x1F00, 0x1F15)], "cyrillic": [(0x410, 0x44F), (0x400, 0x40F)],
    "arabic": [(0x627, 0x63A), (0x641, 0x64A), (0x64B, 0x652), (0x660, 0x669)], "hebrew": [(0x5D0, 0x5EA), (0x5B0, 0x5BD)],
    "devanagari": [(0x905, 0x939), (0x93E, 0x94D), (0x966, 0x96F)], "bengali": [(0x985, 0x98C), (0x995, 0x9A8), (0x9BE, 0x9C4)],
    "tamil": [(0xB85, 0xB8A), (0xB95, 0xB95), (0xBBE, 0xBC2)], "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E), (0xE50, 0xE59)],
    "georgian": [(0x10D0, 0x10F0)], "armenian": [(0x531, 0x556), (0x561, 0x587)], "ethiopic": [(0x1200, 0x1248)],
    "han": [(0x4E00, 0x5200), (0x3400, 0x3420), (0x20000, 0x20020)], "kana": [(0x3041, 0x3096), (0x30A1, 0x30FA), (0x30FC, 0x30FC)],
    "hangul": [(0xAC00, 0xAD00), (0x1100, 0x1112)],
}
EMOJI = ["\U0001F642", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F44D\U0001F3FD", "\u2764\ufe0f", "\U0001F1E9\U0001F1EA", "\u2600"]
ODD = ["\u00a0", "\u3000", "\u2003", "\u200b", "\ufeff", "\u2028", "\u0085", "\u180e", "\ufb01", "\uff21\uff22", "\u00bd", "\u2167",
       "\u0130stanbul", "\u00df", "e\u0301", "a\u0323\u0302", "\u1e9b\u0323", "\u017f's", "\ufffd", "\u24b6\u24b7", "\u2581", "\u3300", "\x01", "\x7f", "\u00ad"]
CODE = """for (std::size_t i = 0; i < n_items; ++i) {
\tif (values[i] != nullptr && !is_empty(values[i])) {
\t\ttotal += values[i]->count * 1024;  // it's 'quoted', I've said we'll don't
    }
}
    def __init__(self, name="x_1", *, size=4096):
        self.url = f"https://example.org/{name}?q={size:>8}&x=%20"
        return {k: v for k, v in self.items() if k.startswith("__")}
SELECT id, COUNT(*) FROM t WHERE price >= 12345.678 AND day = '2024-02-29' GROUP BY 1;
"""
ENGLISH = """Shall I compare thee to a summer's day? Thou art more lovely and more temperate. He'd said: "I'll go, they're WE'RE here,"
and she didn't; it cost $1,234,567.89 (about 10%) in 1999-2001. The quick brown fox jumps over the lazy dog. Don't do not do that!
My mistress' eyes are nothing like the sun; coral is far more red than her lips' red. HTTPServer parseJSON camelCase snake_case X1Y2
"""


def make_text(size, seed=7):
    """A text of about `size` bytes, the same for the same seed."""
    rng = random.Random(seed)
    vocabulary = {}
    for script, ranges in SCRIPTS.items():
        def letter():
            low, high = rng.choice(ranges)
            while True:
                c = chr(rng.randint(low, high))
                if unicodedata.category(c) != "Cn":
                    return c
        vocabulary[script] = ["".join(letter() for _ in range(rng.randint(1, 9))) for _ in range(400)]
    english, code = ENGLISH.split(" "), CODE.splitlines(keepends=True)
    parts, length = [], 0
    while length < size:
        kind = rng.random()
        if kind < 0.30:
            part = " ".join(rng.choices(english, k=rng.randint(3, 30))) + rng.choice([" ", "\n", ". ", "\r\n", "\n\n"])
        elif kind < 0.62:
            words = vocabulary[rng.choice(list(SCRIPTS))]
            glue = rng.choice([" ", " ", " ", "", ", ", "-", "\u3001", "\u060c "])
            part = glue.join(rng.choice(words) for _ in range(rng.randint(2, 20))) + rng.choice([" ", "\n", "\u3002", "! "])
        elif kind < 0.76:
            part = "".join(rng.choices(code, k=rng.randint(1, 4)))
        elif kind < 0.84:
            part = rng.choice([str(rng.randrange(10 ** rng.randint(1, 18))), f"{rng.random():.7f}", "१२३४५", "٣٤٥٦", "²³½", "Ⅷ"]) + rng.choice([" ", ",", "\n"])
        elif kind < 0.90:
            part = "".join(rng.choices(EMOJI, k=rng.randint(1, 4))) + rng.choice([" ", "", "\n"])
        elif kind < 0.94:
            part = rng.choice([" ", "\t", "\n", " \n", "\r\n", "\n\n  "]) * rng.randint(2, 60)
        elif kind < 0.97:
            part = rng.choice(["!", "?!", "...", "--", "''", "``", "<>", "#@", "___", "//", "\u201cx\u201d", "\u00ab", "|"]) * rng.randint(1, 6)
        else:
            part = rng.choice(["", "a", " "]) + rng.choice(ODD) + rng.choice(["", "b", " "])
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)


def lines_of(text):
    return text.splitlines(keepends=True)


def published_patterns():
    """{name: patterns} out of the table that the program itself uses."""
    source = (Path(__file__).parent.parent / "src/butterfly/text/steps/published_patterns.cc").read_text()
    header = (Path(__file__).parent.parent / "src/butterfly/text/steps/published_patterns.h").read_text()
    import re
    constants = dict(re.findall(r'string_view (k\w+) =\s+R"p?\((.*?)\)p?";', header + source, re.S))
    table = {}
    for name, slots in re.findall(r'\.name = "([^"]+)",\s+\.slots = \{([^}]*)\}', source):
        key = tuple(s.strip() for s in slots.split(","))
        if key not in table.values():
            table[name] = key
    return {name: [constants[k] for k in keys] for name, keys in table.items()}


SPECIAL = ["<s>", "</s>", "<unk>"]


def train(tokenizer, text, trainer):
    tokenizer.train_from_iterator(lines_of(text), trainer)
    return tokenizer


def byte_bpe(text, steps, vocab=6000, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return train(tokenizer, text, trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False))


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def unigram(text, normalizer, pre, decoder, vocab=4000, **options):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre, decoder
    return train(tokenizer, text, trainers.UnigramTrainer(vocab_size=vocab, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False, **options))


def word_piece(text, normalizer, pre, vocab=4000, **options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", **options))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    train(tokenizer, text, trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def char_bpe(text, normalizer, pre, decoder, vocab=4000, model=None, **options):
    tokenizer = Tokenizer(models.BPE(**(model or {"unk_token": "<unk>"})))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre:
        tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoder
    return train(tokenizer, text, trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL, show_progress=False, limit_alphabet=1500, **options))


def word_level(text, pre, normalizer=None, vocab=5000):
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    return train(tokenizer, text, trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=SPECIAL, show_progress=False))


def with_bytes(tokenizer, **changes):
    """The same tokenizer with 256 byte pieces and byte fallback."""
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    if isinstance(vocab, list):
        vocab.extend([piece, -20.0] for piece in pieces)
    else:
        vocab.update({piece: len(vocab) + i for i, piece in enumerate(pieces)})
    data["model"]["byte_fallback"] = True
    data["model"].update(changes)
    return Tokenizer.from_str(json.dumps(data))


def llama_like(text):
    spaces = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = char_bpe(text[:60000], spaces, None, decoder, vocab=2500, max_token_length=12)
    return with_bytes(tokenizer, fuse_unk=True)


def added(tokenizer):
    tokenizer.add_tokens([AddedToken("Shall", single_word=True, normalized=False), AddedToken("lovely", lstrip=True, normalized=True),
                          AddedToken("temperate", rstrip=True, normalized=False), AddedToken("\u017fun", normalized=True), AddedToken("camel", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("SELECT", lstrip=True, rstrip=True), AddedToken("mistress'", normalized=False)])
    return tokenizer


def hugging_face(text):
    """(kind, name, function that makes the tokenizer)"""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    P, N, D = pre_tokenizers, normalizers, decoders
    for name, patterns in published_patterns().items():
        if any("\\p{N}{1,3}(?=" in p or "&&" in p for p in patterns):
            continue
        yield "byte BPE", f"bpe-{name}", lambda patterns=patterns: byte_bpe(text, [split(p) for p in patterns] + [level])
    yield "byte BPE", "bpe-nfc", lambda: byte_bpe(text, [split(published_patterns()["qwen2"][0]), level], normalizer=N.NFC())
    yield "byte BPE", "bpe-prefix-space", lambda: added(byte_bpe(text, [P.ByteLevel(add_prefix_space=True)]))
    yield "byte BPE", "bpe-digits-punctuation", lambda: byte_bpe(text, [P.Punctuation("contiguous"), P.Digits(False), level])
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield "byte BPE", f"bpe-split-{behavior}-{invert}", lambda b=behavior, i=invert: byte_bpe(text, [split(r"\w+|\s", b, i), level], vocab=2000)
        yield "byte BPE", f"bpe-string-{behavior}", lambda b=behavior: byte_bpe(text, [P.Split("e", b), P.WhitespaceSplit(), level], vocab=2000)
        yield "byte BPE", f"bpe-punctuation-{behavior}", lambda b=behavior: byte_bpe(text, [P.WhitespaceSplit(), P.Punctuation(b), level], vocab=2000)
    bert = N.BertNormalizer()
    yield "WordPiece", "wordpiece-bert", lambda: word_piece(text, bert, P.BertPreTokenizer())
    yield "WordPiece", "wordpiece-cased", lambda: added(word_piece(text, N.BertNormalizer(lowercase=False), P.BertPreTokenizer()))
    yield "WordPiece", "wordpiece-accents", lambda: word_piece(text, N.BertNormalizer(strip_accents=False, handle_chinese_chars=False, clean_text=False), P.BertPreTokenizer())
    yield "WordPiece", "wordpiece-short", lambda: word_piece(text, N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents()]), P.Whitespace(), max_input_chars_per_word=6)
    meta = P.Metaspace()
    yield "Unigram", "unigram-metaspace", lambda: unigram(text, N.NFKC(), meta, D.Metaspace())
    yield "Unigram", "unigram-nmt", lambda: added(unigram(text, N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), meta, D.Metaspace()))
    yield "Unigram", "unigram-never", lambda: unigram(text, N.Sequence([N.NFKD(), N.Strip()]), P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="never")]), D.Metaspace(prepend_scheme="never"))
    yield "Unigram", "unigram-first", lambda: with_bytes(unigram(text[:200000], N.Append("\u00a7") if hasattr(N, "Append") else N.NFC(), P.Metaspace(prepend_scheme="first"), D.Sequence([D.Metaspace(), D.ByteFallback(), D.Fuse()])))
    yield "Unigram", "unigram-bytelevel", lambda: unigram(text, None, P.ByteLevel(), D.ByteLevel())
    yield "character BPE", "llama", lambda: llama_like(text)
    yield "character BPE", "openai-gpt", lambda: char_bpe(text, N.BertNormalizer(), P.BertPreTokenizer(), D.BPEDecoder(), model={"unk_token": "<unk>", "end_of_word_suffix": "</w>"}, end_of_word_suffix="</w>")
    yield "character BPE", "bpe-continuing", lambda: char_bpe(text, N.Lowercase(), P.WhitespaceSplit(), D.WordPiece("@@", False), model={"unk_token": "<unk>", "fuse_unk": True, "continuing_subword_prefix": "@@"}, continuing_subword_prefix="@@")
    yield "character BPE", "bpe-metaspace", lambda: char_bpe(text, N.NFC(), P.Metaspace(), D.Metaspace())
    yield "character BPE", "bpe-metaspace-whole", lambda: with_bytes(char_bpe(text[:60000], None, P.Metaspace(split=False), D.Metaspace(), vocab=2500, max_token_length=10))
    yield "character BPE", "bpe-byte-normalizer", lambda: char_bpe(text, N.ByteLevel(), P.Split("\u0120", "merged_with_next"), D.ByteLevel())
    yield "character BPE", "bpe-no-unknown", lambda: char_bpe(text[:20000], None, P.Whitespace(), D.BPEDecoder(), model={})
    for name, pre in {"whitespace": P.Whitespace(), "bert": P.BertPreTokenizer(), "scripts": P.UnicodeScripts(), "delimiter": P.CharDelimiterSplit("e"),
                      "fixed": P.FixedLength(length=3) if hasattr(P, "FixedLength") else P.Whitespace(), "digits": P.Sequence([P.WhitespaceSplit(), P.Digits(True)])}.items():
        yield "WordLevel", f"words-{name}", lambda pre=pre: word_level(text, pre)


CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"


def tiktoken_files(text, folder):
    """(name, path, pattern): ranks as `tiktoken` reads them, one for each pattern that files of that name have."""
    patterns = published_patterns()
    import tiktoken._educational as educational
    del educational
    for name, pattern in {"cl100k_base": CL100K, "o200k_base": patterns["gpt-4o"][0], "r50k_base": patterns["gpt-2"][0],
                          "llama3": patterns["llama-bpe"][0], "qwen": patterns["qwen2"][0], "kimi": patterns["kimi-k2"][0]}.items():
        path = folder / f"{name}.tiktoken"
        if not path.exists():
            hf = byte_bpe(text[:300000], [split(patterns["llama-bpe"][0]), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)], vocab=5000)
            alphabet = {c: bytes([b]) for b, c in byte_alphabet().items()}
            pieces = [piece for piece, _ in sorted(hf.get_vocab().items(), key=lambda item: item[1]) if piece != "<|endoftext|>"]
            tokens = sorted((b"".join(alphabet[c] for c in piece) for piece in pieces), key=lambda t: (len(t) > 1,))
            path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        yield name, path, pattern


def byte_alphabet():
    result, extra = {}, 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            result[byte] = chr(byte)
        else:
            result[byte], extra = chr(256 + extra), extra + 1
    return result


def sentencepiece_models(text, folder, plain=()):
    """(name, path); those in `plain` go without the table of characters, which has 240 kB."""
    import sentencepiece
    source = folder / "sentences.txt"
    source.write_text(text[:400000], encoding="utf-8")
    kinds = {"sp-unigram": dict(model_type="unigram"), "sp-bpe": dict(model_type="bpe", byte_fallback=True), "sp-char": dict(model_type="char"),
             "sp-word": dict(model_type="word"), "sp-identity": dict(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False,
             add_dummy_prefix=False), "sp-symbols": dict(model_type="unigram", user_defined_symbols=["Shall", "\uff21\uff22", "day?", "SELECT"], byte_fallback=True),
             "sp-bpe-symbols": dict(model_type="bpe", user_defined_symbols=["Shall I", "\uff21", "ay", "\t\t"], normalization_rule_name="nmt_nfkc_cf"),
             "sp-suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True)}
    for name, options in kinds.items():
        if name in plain:
            options = {**options, "normalization_rule_name": "identity"}
        path = folder / f"{name}.model"
        if not path.exists():
            sentencepiece.SentencePieceTrainer.train(input=str(source), model_prefix=str(folder / name), vocab_size=3000, minloglevel=2, hard_vocab_limit=False,
                                                     character_coverage=0.99, num_threads=1, **options)
        yield name, path


class Side:
    """One tokenizer in its own program: ids of the text, and what they decode to."""

    def __init__(self, name, kind, path, encode, decode):
        self.name, self.kind, self.path, self.encode, self.decode = name, kind, path, encode, decode


def all_sides(text, folder, only):
    training = text[:300000]
    for kind, name, make in hugging_face(training):
        if only and name not in only:
            continue
        path = folder / f"{name}.json"
        if not path.exists():
            make().save(str(path))
        tokenizer = Tokenizer.from_file(str(path))
        yield Side(name, kind, path, lambda t=tokenizer: t.encode(text, add_special_tokens=False).ids,
                   lambda ids, t=tokenizer: t.decode(ids, skip_special_tokens=False))
    import sentencepiece
    for name, path in sentencepiece_models(text, folder):
        if only and name not in only:
            continue
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        yield Side(name, "SentencePiece", path, lambda p=processor: p.encode(text), None)
    import tiktoken
    import tiktoken.load
    for name, path, pattern in tiktoken_files(text, folder):
        if only and name not in only:
            continue
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)), special_tokens={})
        yield Side(name, "tiktoken", path, lambda e=encoding: e.encode_ordinary(text), lambda ids, e=encoding: e.decode(ids))


def run(program, path, *arguments, binary=False):
    result = subprocess.run([str(program), "tokenize", "-m", str(path), *arguments], capture_output=True, check=False)
    if result.returncode != 0:
        return None, result.stderr.decode(errors="replace").strip()
    return (result.stdout if binary else result.stdout.decode()), result.stderr.decode(errors="replace")


def compare(side, program, source, folder):
    """What differs; empty where nothing does."""
    # `tokenizers` takes special tokens in a text for what they are, the others take them for text.
    plain = ["--plain-text"] if side.kind in ("SentencePiece", "tiktoken") else []
    output, error = run(program, side.path, "-f", str(source), "--ids", "--no-bos", *plain)
    if output is None:
        return f"refused: {error}"
    ids, expected = [int(i) for i in output.split()], side.encode()
    if ids != expected:
        at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        return f"{len(ids)} ids, expected {len(expected)}; first difference at {at}: {ids[at:at + 6]} and {expected[at:at + 6]}"
    if side.decode is None:
        return ""
    listed = folder / "ids.txt"
    listed.write_text(" ".join(map(str, ids)))
    decoded, error = run(program, side.path, "-f", str(listed), "--decode", "--show-special", binary=True)
    wanted = side.decode(ids).encode()
    if decoded != wanted:
        if decoded is None:
            return f"cannot decode: {error}"
        at = next((i for i, (a, b) in enumerate(zip(decoded, wanted)) if a != b), min(len(decoded), len(wanted)))
        return f"decodes to {len(decoded)} bytes, expected {len(wanted)}; at {at}: {decoded[at - 20:at + 20]!r} and {wanted[at - 20:at + 20]!r}"
    return ""


def speed(side, program, source, rounds):
    """Medians in seconds: ours and theirs, in turns."""
    ours, theirs = [], []
    for _ in range(rounds):
        output, error = run(program, side.path, "-f", str(source), "--no-bos", "--time", "1")
        if output is None:
            return None, error
        ours.append(float(output.split()[0]))
        begin = time.perf_counter()
        side.encode()
        theirs.append(time.perf_counter() - begin)
    return statistics.median(ours), statistics.median(theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--butterfly", type=Path, default=Path("build/release/bin/butterfly"))
    parser.add_argument("--folder", type=Path, default=Path("build/tokenizers"), help="where tokenizers are kept for the next time")
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--speed", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--make", action="store_true", help="only make the text and the tokenizers")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = make_text(options.bytes)
    source = options.folder / "text.txt"
    source.write_bytes(text.encode())
    failures = 0
    for side in all_sides(text, options.folder, options.only):
        if options.make:
            continue
        if options.speed:
            ours, theirs = speed(side, options.butterfly, source, options.speed)
            bad = ours is None or ours > theirs
            megabytes = len(text.encode()) / 1e6
            print(f"{side.kind:14} {side.name:32} " + (f"refused: {theirs}" if ours is None else
                  f"{megabytes / ours:7.1f} MB/s, theirs {megabytes / theirs:7.1f} MB/s, {theirs / ours:5.1f} times as fast"), flush=True)
        else:
            difference = compare(side, options.butterfly, source, options.folder)
            bad = bool(difference)
            print(f"{side.kind:14} {side.name:32} {difference or 'equal'}", flush=True)
        failures += bad
    print("all equal or faster" if failures == 0 else f"{failures} differ or are slower")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
