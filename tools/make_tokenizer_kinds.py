#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: a small tokenizer of each kind, and what its own library makes of awkward texts.

    pip install tokenizers sentencepiece tiktoken
    python3 tools/make_tokenizer_kinds.py [NAME...]

The tokenizers are those of compare_tokenizers.py, trained on less: NAME.json by `tokenizers`, NAME.model by
`sentencepiece`, NAME.tiktoken for `tiktoken`. NAME.cases.json lists texts with their ids, with what these decode to
(special tokens shown) and with the ids where special tokens are added.
"""

import json
import sys
import tempfile
from pathlib import Path

import compare_tokenizers as compare

FOLDER = Path(__file__).parent.parent / "tests/golden/tokenizers"
NAMES = ["wordpiece-bert", "wordpiece-cased", "wordpiece-short", "unigram-metaspace", "unigram-nmt", "unigram-first", "openai-gpt",
         "bpe-continuing", "bpe-metaspace", "llama", "bpe-split-merged_with_next-True", "bpe-digits-punctuation", "bpe-nfc",
         "bpe-prefix-space", "bpe-gpt-4o", "words-scripts", "words-fixed", "words-digits"]
MODELS = ["sp-unigram", "sp-bpe", "sp-char", "sp-word", "sp-symbols", "sp-bpe-symbols", "sp-suffix"]
RANKS = ["cl100k_base", "o200k_base", "kimi"]
TEXTS = ["", " ", "   ", "a", " a ", "  two  spaces ", "\n\n\t x\r\n", "Shall I compare thee to a summer's day?", "HE'S they're Don't do not do that !",
         "Shallow Shall, lovely temperate camelCase  lovely  x", "SELECT COUNT(*) FROM t", "mistress' eyes [CLS] <s> [MASK]",
         "1234567 12 0.5 3.14159 1999-2001", "१२३४५ ٣٤٥٦ ½²³ Ⅷ", "café cafe\u0301 Ａｂ ﬁ ſun İstanbul ß", "Привет, мир! Γειά σου", "你好，世界。カタカナ ひらがな 한국어",
         "مرحبا بالعالم שלום", "नमस्ते दुनिया สวัสดี", "🙂👍🏽 👨\u200d👩\u200d👧 ❤️", "x\u00a0y\u3000z\u200bw\ufeff", "a\u0001b\u007fc\u00add", "\u2581 _ ▁▁x", "\ufffd\u180e",
         "for (int i = 0; i < n; ++i) {\n\t\tx += 1;  // ok\n    }", "https://example.org/a_b?q=1&r=%20", "...?!--''``<>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "supercalifragilisticexpialidocious", "HTTPServer parseJSON X1Y2", "\ta\t\tb", "a\nb\n\nc", "e\u0323\u0301\u0302", "ǅ ﷺ ㍿", "𝔘𝔫𝔦 𝟙𝟚", "𠀀𠀁 㐀"]


def texts():
    sample = compare.make_text(4000, seed=11)
    return TEXTS + [line for line in compare.lines_of(sample) if 3 < len(line) < 200][:24]


def cases(encode, decode, special):
    result = []
    for text in texts():
        entry = {"text": text, "ids": encode(text)}
        if decode:
            entry["decoded"] = decode(entry["ids"])
        if special:
            entry["with_special"] = special(text)
        result.append(entry)
    return result


def write(name, entries):
    lines = ",\n".join(json.dumps(entry, ensure_ascii=True) for entry in entries)
    (FOLDER / f"{name}.cases.json").write_text(f"[\n{lines}\n]\n")


def shrink():
    """The makers of compare_tokenizers.py with small vocabularies."""
    for function in (compare.byte_bpe, compare.unigram, compare.word_piece, compare.char_bpe, compare.word_level):
        defaults = list(function.__defaults__)
        names = function.__code__.co_varnames[:function.__code__.co_argcount][-len(defaults):]
        defaults[names.index("vocab")] = 2600 if function is compare.unigram else 600
        function.__defaults__ = tuple(defaults)


def main(wanted):
    def takes(name, names):
        return name in names and (not wanted or name in wanted)

    FOLDER.mkdir(exist_ok=True)
    shrink()
    text = compare.make_text(60_000, seed=3)
    for kind, name, make in compare.hugging_face(text):
        if not takes(name, NAMES):
            continue
        tokenizer = make()
        path = FOLDER / f"{name}.json"
        tokenizer.save(str(path), pretty=False)
        tokenizer = compare.Tokenizer.from_file(str(path))
        adds = name in ("wordpiece-bert", "wordpiece-cased")
        write(path.name, cases(lambda t: tokenizer.encode(t, add_special_tokens=False).ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
                               (lambda t: tokenizer.encode(t).ids) if adds else None))
    with tempfile.TemporaryDirectory() as temporary:
        import sentencepiece
        for name, path in compare.sentencepiece_models(compare.make_text(30_000, seed=3), Path(temporary), MODELS[1:]):
            if takes(name, MODELS):
                data = path.read_bytes()
                (FOLDER / path.name).write_bytes(data)
                processor = sentencepiece.SentencePieceProcessor(model_proto=data)
                write(path.name, cases(processor.encode, None, None))
        import tiktoken
        import tiktoken.load
        for name, path, pattern in compare.tiktoken_files(text, Path(temporary)):
            if takes(name, RANKS):
                lines = path.read_text().splitlines(keepends=True)[:900]
                (FOLDER / path.name).write_text("".join(lines))
                ranks = {compare.base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
                encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
                write(path.name, cases(encoding.encode_ordinary, encoding.decode, None))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
