#!/usr/bin/env python3
"""Makes tests/golden/text_*.json: three small tokenizers and what Hugging Face's `tokenizers` makes of awkward texts;
and bpe_text.txt with bpe_tokenizer.json: a text, and what BpeTrainer learns from it.

    pip install tokenizers
    python3 tools/make_tokenizer_golden.py [path/to/tinyshakespeare.txt]

With the text also bpe_large.json: a digest of what is learned from the parts that train the demo model.
Each text_NAME.json is a tokenizer.json, trained here on the lines below; text_cases.json lists, by NAME, texts with
their ids (special tokens recognised, nothing added in front) and the text that the ids decode to.
"""

import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from demo_data import cut

# Shakespeare, Sonnets 18 and 130 and Hamlet (public domain).
LINES = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall Death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.
My mistress' eyes are nothing like the sun;
Coral is far more red than her lips' red;
If snow be white, why then her breasts are dun;
If hairs be wires, black wires grow on her head.
To be, or not to be, that is the question:
Whether 'tis nobler in the mind to suffer
The slings and arrows of outrageous fortune,
Or to take arms against a sea of troubles
And by opposing end them. 12 345 6789 10000, 3.14 (1609)!
    indented   three  two\ttab\n\n\nthree lines down\r\nä ö ü é Привет 你好 🙂
""".splitlines(keepends=True)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\n", " \n ", "a", " a", "a ", "  a  b  ", "aaaaaaaaaaaaaaaaa",
    "Shall I compare thee", " Shall I compare thee", "To be, or not to be: that is the question.",
    "I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL",
    "3 33 333 3333 33333 333333 3.3 3..3", "½ ² ³ Ⅷ ٣ १२३", "!!!!!!", "...\n", "?!\r\n\r\nx", "a\r\nb\rc\n\n d",
    "<bos>To be", "To be<eos>", "x<bos><eos>y", " <bos> To be <eos> ", "<bo", "<bos", "a<user>b <user> c", "<pad>",
    "Zürich, naïve café, Ærøskøbing", "e\u0301 vs \u00e9", "Привет, мир! Ещё раз", "你好世界，我想在apple工作1314151天～",
    "こんにちは 世界", "مرحبا بالعالم", "नमस्ते दुनिया", "កាន់តែពិសេសអាចខលចេញ", "🙂🚀 (normal) 😶‍🌫️ 👩‍👩‍👧‍👦", "🏳️‍🌈",
    "\u00a0nbsp\u00a0\u00a0two", "\u3000ideographic\u2003em\u2009thin\u200bzero\u2028line\u2029paragraph",
    "\u0085next\u000bvertical\u000cform", "\u180emongolian", "\ufeffbom", "soft\u00adhyphen", "\u2581low\u2581line \u2581",
    "\u0000null\u0001one\u007fdelete", "\U0010ffff\ue000", "ſ'ſ İ'S K", "_snake_case __init__ CamelCase", "def f(x):\n    return x\n\n\ndef",
    "tabs\t\tand\t spaces  \t mixed \n  \n\tend", "http://example.org/?q=1&r=2#top", "a\u0300\u0301\u0302\u0303b", "ﬁ ﬀ ligature",
]


def special(name):
    return AddedToken(name, special=True, normalized=False)


def byte_bpe(split):
    tokenizer = Tokenizer(models.BPE())
    steps = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=[special("<bos>"), special("<eos>")], show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def sentencepiece():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    names = ["<unk>", "<bos>", "<eos>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=[special(name) for name in names], show_progress=False)
    # Trained word by word, so that pieces do not swallow whole lines; used without a pre-tokenizer, as Llama 2 is.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.train_from_iterator(LINES, trainer)
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = None
    document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(document))


def bpe_text():
    """Prose, and words of few letters, in which ties abound and two ways of merging lead to the same token."""
    generator = random.Random(1)
    words = ["".join(generator.choices("abc", k=generator.randint(1, 12))) for _ in range(700)]
    return "".join(LINES) + " ".join(words) + "\n  aaaaaaaaaaaaaaaaaaaaa   <|endoftext|> 1234567890\n"


def bpe_tokenizer(texts, vocab=900):
    """As butterfly tokenize --train makes it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_bpe(folder):
    text = bpe_text()
    with open(os.path.join(folder, "bpe_text.txt"), "w", encoding="utf-8", newline="") as file:
        file.write(text)
    with open(os.path.join(folder, "bpe_tokenizer.json"), "w", encoding="utf-8") as file:
        file.write(bpe_tokenizer([text]).to_str(pretty=False) + "\n")


def make_large_bpe(folder, path):
    """What BpeTrainer learns from the demo model's parts of a text that is not committed, as a digest."""
    text = Path(path).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as out:
        parts, _ = cut(Path(path), Path(out))
        learned = json.loads(bpe_tokenizer([part.read_text(encoding="utf-8") for part in parts], 2048).to_str())["model"]
    merges = "".join((pair if isinstance(pair, str) else " ".join(pair)) + "\n" for pair in learned["merges"])
    golden = {"text_sha256": hashlib.sha256(text.encode()).hexdigest(), "vocab": 2048,
              "merges_sha256": hashlib.sha256(merges.encode()).hexdigest()}
    with open(os.path.join(folder, "bpe_large.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(golden, indent=1) + "\n")


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
    make_bpe(folder)
    if len(sys.argv) > 1:
        make_large_bpe(folder, sys.argv[1])
    cases = {}
    for name, tokenizer in {"byte_bpe": byte_bpe(None), "llama3_split": byte_bpe(LLAMA3),
                            "sentencepiece": sentencepiece()}.items():
        tokenizer.add_tokens([AddedToken("<user>", special=False, normalized=False)])
        bos = tokenizer.token_to_id("<bos>")
        template = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
        tokenizer.post_processor = template
        with open(os.path.join(folder, f"text_{name}.json"), "w", encoding="utf-8") as file:
            file.write(tokenizer.to_str(pretty=False) + "\n")
        cases[name] = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases[name].append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    with open(os.path.join(folder, "text_cases.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=True, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
