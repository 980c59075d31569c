#!/usr/bin/env python3
"""Writes tests/golden/quant_types.bin: blocks of every quantised type and the floats that the gguf package decodes.

Random bytes with ordinary scales: every bit pattern of quants and of packed scales occurs. For the types that the
package can quantise to, also random floats with the bytes that it makes of them. Needs: gguf, numpy.

Per record: name (8 bytes), u32 kind (0: blocks to floats, 1: floats to blocks), u32 bytes, u32 floats, bytes, floats.
"""

import pathlib
import struct

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

ELEMENTS = 512
# Where a block has halves: the scale and, if there is one, the minimum.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
QUANTISED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]


def record(name: str, kind: int, data: np.ndarray, floats: np.ndarray) -> bytes:
    head = struct.pack("<8sIII", name.lower().encode(), kind, data.size, floats.size)
    return head + data.tobytes() + floats.astype(np.float32).tobytes()


def random_blocks(rng: np.random.Generator, name: str) -> np.ndarray:
    elements, size = GGML_QUANT_SIZES[Type[name]]
    blocks = rng.integers(0, 256, (ELEMENTS // elements, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = (rng.standard_normal(blocks.shape[0]) * 0.05).astype(np.float16)
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(100, 140, blocks.shape[0])
        blocks[:3, 0] = [0, 1, 2]  # exponents of subnormal scales
    return blocks.reshape(-1)


def main() -> None:
    rng = np.random.default_rng(14)
    out = b""
    for name in HALVES:
        data = random_blocks(rng, name)
        out += record(name, 0, data, gguf.quants.dequantize(data, Type[name]))
    for name in QUANTISED:
        floats = rng.standard_normal(ELEMENTS).astype(np.float32)
        floats[32:64] = 0
        floats[64:96] = np.abs(floats[64:96])
        data = gguf.quants.quantize(floats, Type[name])
        out += record(name, 1, data, floats)
    path = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "quant_types.bin"
    path.write_bytes(out)
    print(f"{path}: {len(out)} bytes")


if __name__ == "__main__":
    main()
