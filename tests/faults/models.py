"""Models of any shape for the campaigns: the demo model's tokenizer, random weights, so that a load lasts or layers are many.

A file is made once and kept in a folder of the user's temporary directory; equal shapes give equal bytes.
"""

import math
import os
import random
import struct
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "models/demo.gguf")
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32 = 8, 9, 4
F32, F16 = 0, 1
ALIGNMENT = 32


def _entries(data):
    """[(key, type, the value's bytes)] of a GGUF file's metadata."""
    tensors, count = struct.unpack_from("<QQ", data, 8)
    place, entries = 24, []

    def after_string(at):
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    for _ in range(count):
        key_end = after_string(place)
        key = data[place + 8:key_end].decode()
        (kind,) = struct.unpack_from("<I", data, key_end)
        begin = end = key_end + 4
        if kind == STRING:
            end = after_string(begin)
        elif kind == ARRAY:
            element, length = struct.unpack_from("<IQ", data, begin)
            end = begin + 12
            for _ in range(length):
                end = after_string(end) if element == STRING else end + SIZES[element]
        else:
            end += SIZES[kind]
        entries.append((key, kind, data[begin:end]))
        place = end
    return entries


def _string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _tensors(layers, width, heads, kv_heads, ff, vocab, experts):
    """(name, extents, type), the contiguous extent first."""
    kv = width // heads * kv_heads
    yield "token_embd.weight", (width, vocab), F16
    for i in range(layers):
        for name, extents in (("attn_norm", (width,)), ("attn_q", (width, width)), ("attn_k", (width, kv)),
                              ("attn_v", (width, kv)), ("attn_output", (width, width)), ("ffn_norm", (width,)),
                              ("ffn_gate", (width, ff)), ("ffn_up", (width, ff)), ("ffn_down", (ff, width))):
            if experts and name in ("ffn_gate", "ffn_up", "ffn_down"):
                name, extents = name + "_exps", (*extents, experts)
            yield f"blk.{i}.{name}.weight", extents, F16 if len(extents) >= 2 else F32
        if experts:
            yield f"blk.{i}.ffn_gate_inp.weight", (width, experts), F16
    yield "output_norm.weight", (width,), F32


def _write(path, layers, width, heads, kv_heads, ff, context, experts):
    with open(DEMO, "rb") as demo:
        entries = _entries(demo.read())
    numbers = {"block_count": layers, "context_length": context, "embedding_length": width, "feed_forward_length": ff,
               "attention.head_count": heads, "attention.head_count_kv": kv_heads,
               "attention.key_length": width // heads, "attention.value_length": width // heads,
               "rope.dimension_count": width // heads}
    if experts:
        entries += [(f"llama.{key}", U32, struct.pack("<I", number)) for key, number in
                    (("expert_count", experts), ("expert_used_count", 2), ("expert_feed_forward_length", ff))]
    vocab = next(struct.unpack("<I", value)[0] for key, _, value in entries if key == "llama.vocab_size")
    tensors, offset, listing = list(_tensors(layers, width, heads, kv_heads, ff, vocab, experts)), 0, b""
    sizes = []
    for name, extents, kind in tensors:
        size = (4 if kind == F32 else 2) * math.prod(extents)
        sizes.append(size)
        listing += _string(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    for key, kind, value in entries:
        number = numbers.get(key.removeprefix("llama."))
        header += _string(key) + struct.pack("<I", kind) + (value if number is None else struct.pack("<I", number))
    header += listing
    header += bytes(-len(header) % ALIGNMENT)
    generator = random.Random(1)
    pool = struct.pack("<32768e", *(generator.gauss(0, 0.5 / width**0.5) for _ in range(32768)))
    with open(path, "wb") as out:
        out.write(header)
        for (name, extents, kind), size in zip(tensors, sizes):
            if kind == F32:
                data = struct.pack("<f", 1.0) * (size // 4)
            else:
                start = 2 * generator.randrange(16384)
                data = (pool[start:] + pool * (size // len(pool) + 1))[:size]
            out.write(data + bytes(-size % ALIGNMENT))


def make(layers, width, heads=4, kv_heads=2, ff=None, context=4096, experts=0):
    """The path of a model of this shape, made when it is not there yet."""
    ff = ff or 2 * width
    folder = os.path.join(tempfile.gettempdir(), f"butterfly-fault-models-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    shape = f"l{layers}-w{width}-h{heads}-{kv_heads}-f{ff}-c{context}" + (f"-e{experts}" if experts else "")
    path = os.path.join(folder, shape + ".gguf")
    if not os.path.exists(path):
        unfinished = f"{path}.{os.getpid()}"
        _write(unfinished, layers, width, heads, kv_heads, ff, context, experts)
        os.rename(unfinished, path)
    return path


def hundred_layers():
    """Six MB in a hundred layers: a layer for each of a hundred workers."""
    return make(layers=100, width=64, ff=128, context=512)


def slow_to_load():
    """170 MB in eight layers: loading and reading a long prompt take long enough to be hit."""
    return make(layers=8, width=1024, heads=8, kv_heads=4, ff=2560, context=2048)


def quick_to_load():
    """A quarter of it, for short campaigns."""
    return make(layers=8, width=512, heads=8, kv_heads=4, ff=1280, context=2048)


EVEN_LAYERS = 2


def even_slices(width=2048):
    """170 MB, or as many times more as the width is squared, in which each of 32 slices has the same part of everything
    that is divided: a head with keys and values of its own, as many columns, as many panels of the vocabulary."""
    return make(layers=EVEN_LAYERS, width=width, heads=32, kv_heads=32, ff=2 * width, context=512)


def eight_experts():
    """11 MB in two layers of eight experts, rows of 256 elements."""
    return make(layers=2, width=256, heads=4, kv_heads=2, ff=256, context=512, experts=8)
