"""Models whose every answer is known, made here from nothing: tests of what a server makes of calls and reasoning need
no model that was trained to write them.

write_scripted(folder): a Llama of two layers that add nothing. Each token is a direction of its own, and the head leads
from it to the token that follows it, whatever stood before. The last token of the prompt therefore decides all that
follows: the chat template ends with one that it chooses by words of the last message.
write_encoder(folder): the random BERT of the golden files with a WordPiece vocabulary of letters.
"""

import json
import os
import shutil
import struct

from program import ROOT

DIM, HEADS, FF, LAYERS = 512, 16, 64, 2
END = "<|end|>"
WEATHER = '{"city": "Verona", "days": 2}'
# By the word in the last message: what ends the prompt, and the tokens of the answer.
SCRIPTS = {
    "single": ("[single]", ["<tool_call>", '{"name": "weather", ', '"arguments": {"city"', ': "Verona", ', '"days": 2}}',
                            "</tool_call>"]),
    "twice": ("[twice]", ["I look ", "it up.", '<tool_call>{"name": "weather", ', '"arguments": {"city": "Verona"}}</tool_call>',
                          '<tool_call>{"name": "clock", ', '"arguments": {"zone": "CET"}}</tool_call>']),
    "reason": ("<think>", ["First ", "I weigh ", "it all.", "</think>", "Then ", "I speak."]),
    "muse": ("<think>\n", ["Round ", "and round ", "I go. ", "Still ", "I muse. ", "Round "]),
}
DEFAULT = ("[plain]", ["Plain ", "words ", "and ", "no ", "more."])
TEMPLATE = (
    "{% if tools %}Tools: {{ tools | tojson }}. Call one by <tool_call>JSON</tool_call>.\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
    "{% set last = messages[-1].content %}"
    + "".join("{% " + ("elif" if i else "if") + f" '{word}' in last %}}" + begin.replace("\n", "{{ '\\n' }}")
              for i, (word, (begin, _)) in enumerate(SCRIPTS.items()))
    + "{% else %}" + DEFAULT[0] + "{% endif %}")


def byte_letters():
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def half(value):
    return struct.pack("<e", value)


def save_halves(path, tensors):
    """tensors: name to (shape, bytes)."""
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


def dump(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)


def script_tokens():
    tokens = [END]
    for begin, answer in [*SCRIPTS.values(), DEFAULT]:
        tokens += [token for token in [begin, *answer] if token not in tokens]
    return tokens


def write_scripted(folder):
    """Returns `folder`, a Hugging Face directory then."""
    os.makedirs(folder, exist_ok=True)
    letters = [letter for _, letter in sorted(byte_letters().items())]
    extra = script_tokens()
    ids = {token: len(letters) + i for i, token in enumerate(extra)}
    count = len(letters) + len(extra)
    follows = {i: ids[END] for i in range(count)}
    for begin, answer in [*SCRIPTS.values(), DEFAULT]:
        for token, after in zip([begin, *answer], [*answer, END]):
            follows.setdefault(ids[token], ids[after])
            if follows[ids[token]] == ids[END]:
                follows[ids[token]] = ids[after]
    assert count < DIM

    def rows(entries, columns):
        out = bytearray(2 * len(entries) * columns)
        for row, column in enumerate(entries):
            for at in column:
                out[2 * (row * columns + at):2 * (row * columns + at) + 2] = half(1.0)
        return [len(entries), columns], bytes(out)

    before = {i: [] for i in range(count)}
    for token, after in follows.items():
        before[after].append(token)
    tensors = {"model.embed_tokens.weight": rows([[i] for i in range(count)], DIM),
               "lm_head.weight": rows([before[i] for i in range(count)], DIM),
               "model.norm.weight": ([DIM], half(1.0) * DIM)}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        for name, out, columns in (("self_attn.q_proj", DIM, DIM), ("self_attn.k_proj", DIM, DIM),
                                   ("self_attn.v_proj", DIM, DIM), ("self_attn.o_proj", DIM, DIM),
                                   ("mlp.gate_proj", FF, DIM), ("mlp.up_proj", FF, DIM), ("mlp.down_proj", DIM, FF)):
            tensors[f"{block}{name}.weight"] = ([out, columns], bytes(2 * out * columns))
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}{name}.weight"] = ([DIM], half(1.0) * DIM)
    save_halves(os.path.join(folder, "model.safetensors"), tensors)
    dump(os.path.join(folder, "config.json"), {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": count, "hidden_size": DIM,
        "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float16", "bos_token_id": ids[END], "eos_token_id": ids[END]})
    added = [{"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": token == END} for token in extra]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    dump(os.path.join(folder, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []}})
    dump(os.path.join(folder, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE,
        "add_bos_token": False})
    return folder


def write_encoder(folder):
    """Returns `folder`: 60 tokens, 32 dimensions, texts of lower-case letters."""
    os.makedirs(folder, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(ROOT, "tests/golden/encoders/bert", name), folder)
    letters = [chr(ord("a") + i) for i in range(26)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters), ".", "!", "?"]
    special = [{"id": i, "content": words[i], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i in range(5)]
    dump(os.path.join(folder, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                                      {"Sequence": {"id": "A", "type_id": 0}},
                                      {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                           "pair": [],
                           "special_tokens": {word: {"id": word, "ids": [words.index(word)], "tokens": [word]}
                                              for word in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}}})
    return folder
