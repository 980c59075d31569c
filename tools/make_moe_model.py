#!/usr/bin/env python3
"""Trains a small mixture of experts on the demo model's text and writes it as a Hugging Face directory.

    python tools/make_moe_model.py path/to/tinyshakespeare.txt OUT
    build/release/bin/butterfly convert OUT moe.gguf --type q4_k_m

Mixtral's block with 8 experts of which a token goes through 2, in 2 layers; 1.2 of 4 million weights are at work for a
token. Every row is 256 elements long, so that blocks of 256 fit. The tokenizer is learned as the demo model's is.
Needs torch and transformers; minutes on 2 cores.
"""

import argparse
import os
import subprocess
import time
from pathlib import Path

import torch
import transformers
from demo_data import cut

ROOT = Path(__file__).resolve().parent.parent
SEQUENCE, BATCH, PEAK_RATE, WARM_UP = 128, 8, 3e-3, 60


def token_ids(program: str, tokenizer: Path, texts: list[Path]) -> torch.Tensor:
    ids = []
    for text in texts:
        done = subprocess.run([program, "tokenize", "-m", tokenizer, "-f", text, "--ids"], check=True,
                              capture_output=True, text=True)
        ids += [int(word) for word in done.stdout.split()]
    return torch.tensor(ids)


def config_of(vocab: int) -> transformers.MixtralConfig:
    return transformers.MixtralConfig(
        vocab_size=vocab, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=512, num_local_experts=8, num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, sliding_window=None, tie_word_embeddings=True,
        output_router_logits=True, router_aux_loss_coef=0.02, bos_token_id=0, eos_token_id=0, pad_token_id=None)


def batch_of(ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(ids) - SEQUENCE, (BATCH,), generator=generator)
    return torch.stack([ids[start:start + SEQUENCE] for start in starts])


def loss_of(model, ids: torch.Tensor) -> torch.Tensor:
    """Nats per token, without what the router adds."""
    logits = model(ids, use_cache=False).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def validation_loss(model, ids: torch.Tensor) -> float:
    windows = ids[: len(ids) // SEQUENCE * SEQUENCE].view(-1, SEQUENCE)[:64]
    with torch.no_grad():
        return sum(loss_of(model, part).item() for part in windows.split(16)) / len(windows.split(16))


def train(model, ids: torch.Tensor, held_out: torch.Tensor, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, 1.0) * (1.0 - 0.9 * step / steps))
    begin = time.monotonic()
    for step in range(steps):
        batch = batch_of(ids, generator)
        loss = model(batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, validation {validation_loss(model, held_out):.3f}, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="UTF-8 text file")
    parser.add_argument("out", type=Path, help="directory to write; created if missing")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--program", default=os.environ.get("BUTTERFLY_PROGRAM", ROOT / "build/release/bin/butterfly"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts, validation = cut(arguments.text, arguments.out / "data")
    tokenizer = arguments.out / "tokenizer.json"
    learn = [arguments.program, "tokenize", "--train", *parts, "--vocab", "2048", "--out", tokenizer]
    subprocess.run(learn, check=True)
    ids = token_ids(arguments.program, tokenizer, parts)
    held_out = token_ids(arguments.program, tokenizer, [validation])
    model = transformers.MixtralForCausalLM(config_of(2048)).float()
    total = sum(parameter.numel() for parameter in model.parameters())
    print(f"{total} weights, {len(ids)} tokens", flush=True)
    train(model, ids, held_out, arguments.steps)
    model.save_pretrained(arguments.out)
    print(f"validation loss {validation_loss(model.eval(), held_out):.4f} nats per token")


if __name__ == "__main__":
    main()
