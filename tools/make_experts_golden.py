#!/usr/bin/env python3
"""Writes tests/golden/gpt_oss_experts/{model.safetensors, mlp.f32}: a tiny gpt-oss of one layer, whose experts are
stacked, transposed and have gate and up in turns, and what its MLP makes of random rows.

    python tools/make_experts_golden.py --out tests/golden/gpt_oss_experts

mlp.f32 holds the rows and then PyTorch's results in fp32, [rows, 32] each, little-endian. The rows are large enough for
the clamped activation to be at its limits.
"""

import argparse
from pathlib import Path

import torch
import transformers

ROWS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.manual_seed(11)
    config = transformers.GptOssConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=6,
        num_experts_per_tok=2,
        swiglu_limit=2.0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    mlp = model.model.layers[0].mlp
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.normal_(0.0, 0.2)
        rows = 2.0 * torch.randn(ROWS, config.hidden_size)
        results = mlp(rows.unsqueeze(0))[0].squeeze(0)
        chosen = mlp.router(rows)[2].flatten()
    model.save_pretrained(out)
    for name in ("config.json", "generation_config.json"):
        (out / name).unlink(missing_ok=True)
    (out / "mlp.f32").write_bytes(torch.cat([rows, results]).numpy().astype("<f4").tobytes())
    print(f"rows by expert {torch.bincount(chosen, minlength=6).tolist()}, results up to {results.abs().max():.3f}")


if __name__ == "__main__":
    main()
