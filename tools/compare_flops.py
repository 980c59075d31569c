#!/usr/bin/env python3
"""The FLOPs that a recording of `butterfly train` counts, beside those that PyTorch's FlopCounterMode counts for the same model.

    python3 tools/compare_flops.py --python PEER/bin/python [--model tinytransformer-small --batch 8 --seq 128] BUTTERFLY

PEER is a virtual environment with PyTorch (pip install torch==2.13.0 numpy). --model is one of training_peer.py's shapes, or "llama":
a small model of that family, made and run by the transformers library there, all its matmuls as one sum. One step is recorded, its spans are added up by
operation; the same forward and backward pass runs in PyTorch under the counter. Matmuls have to be equal. So has attention, once
both count the same pairs: PyTorch's formula multiplies every query with every key, which a causal kernel does not; ours counts the
seq (seq + 1) / 2 pairs of each head that are seen. The backward pass has five matmuls over these pairs in both, since the scores are
computed again. The counter's formula has no entry for the kernel of CPUs: it is given the one of the others.
Exit code 1: they differ.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

from recording import MATMULS, Recording

PARTS = {"qkv": "qkv", "query": "qkv", "key": "qkv", "value": "qkv", "attention_output": "output", "gate_up": "up", "gate": "up",
         "up": "up", "down": "down", "lm_head": "lm_head"}
LLAMA = "llama"


def make_llama(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=192, intermediate_size=512, num_hidden_layers=3, num_attention_heads=6,
                                 num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False)).save_pretrained(folder)


def peer_model(arguments):
    """The model that is counted, as a function of tokens and targets, its vocabulary, and the modules that are counted apart: of
    separate projections none, as the counter gives a module's backward pass also to others that have the same input."""
    import torch.nn.functional as F

    if arguments.checkpoint:
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(arguments.checkpoint, attn_implementation="sdpa")

        def loss(tokens, targets):
            return F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())

        return loss, model.config.vocab_size, {}
    import training_peer

    plain = F.scaled_dot_product_attention

    def of_whole_heads(q, k, v, is_causal, enable_gqa):
        """What shares keys and values is written out: the fused kernel of CPUs takes no groups."""
        groups = q.shape[1] // k.shape[1] if enable_gqa else 1
        return plain(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), is_causal=is_causal)

    training_peer.F.scaled_dot_product_attention = of_whole_heads
    shape = training_peer.SHAPES[arguments.model]
    return training_peer.Model(shape, arguments.seq), shape.vocab, set(PARTS.values()) - {"lm_head"}


def count_by_pytorch(arguments):
    import torch
    from torch.utils import flop_counter

    model, vocab, parts = peer_model(arguments)
    tokens = torch.randint(vocab, (arguments.batch, arguments.seq + 1))
    aten = torch.ops.aten
    formulas = {aten._scaled_dot_product_flash_attention_for_cpu:
                lambda q, k, v, *_, **__: flop_counter.sdpa_flop_count(q, k, v),
                aten._scaled_dot_product_flash_attention_for_cpu_backward:
                lambda dout, q, k, v, *_, **__: flop_counter.sdpa_backward_flop_count(dout, q, k, v)}
    with flop_counter.FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).backward()
    counts = collections.Counter()
    for module, operations in counter.get_flop_counts().items():
        for operation, flops in operations.items():
            if "attention" in str(operation):
                if module == "Global":
                    counts["attention"] += flops
            elif module == "Global":
                counts["lm_head"] += flops
            elif module.rsplit(".", 1)[-1] in parts:
                counts[module.rsplit(".", 1)[-1]] += flops
                counts["lm_head"] -= flops  # what no layer has is the head's
    if not parts:
        counts["matmuls"] = counts.pop("lm_head")
    print(json.dumps({"torch": torch.__version__, **counts}))


def count_by_recording(arguments, folder):
    command = [arguments.butterfly, "train", "--model", arguments.checkpoint or arguments.model, "--data", "synthetic:random", "--batch", str(arguments.batch),
               "--seq", str(arguments.seq), "--steps", "1", "--log", "silent", "--precision", arguments.precision]
    # One step learns nothing, which is no reason to stop here.
    done = subprocess.run(command, env={**os.environ, "BUTTERFLY_RECORD": folder}, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    recording = Recording(next(entry.path for entry in os.scandir(folder) if entry.name.endswith(".bftrace")))
    counts = collections.Counter()
    again = 0
    for _, spans in recording.steps():
        for span in spans:
            if span.kind == "recompute" and span.zone in MATMULS:
                again += span.flops
            elif span.zone in PARTS:
                counts[PARTS[span.zone]] += span.flops
            elif span.zone == "attention":
                counts["attention"] += span.flops
            elif span.zone in MATMULS:
                counts[span.zone] += span.flops
    return counts, again


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("butterfly", nargs="?", default="build/release/bin/butterfly")
    parser.add_argument("--python", default=sys.executable, help="of an environment with PyTorch")
    parser.add_argument("--model", default="tinytransformer-small", help="one of training_peer.py's, or llama")
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--pytorch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        return make_llama(arguments.make)
    if arguments.pytorch:
        return count_by_pytorch(arguments)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as checkpoint:
        if arguments.model == LLAMA:
            arguments.checkpoint = checkpoint
            subprocess.run([arguments.python, __file__, "--make", checkpoint], check=True)
        ours, again = count_by_recording(arguments, folder)
        passed = ["--pytorch", "--model", arguments.model, "--batch", str(arguments.batch), "--seq", str(arguments.seq)]
        if arguments.checkpoint:
            passed += ["--checkpoint", arguments.checkpoint]
        answer = subprocess.run([arguments.python, __file__, *passed], stdout=subprocess.PIPE, text=True, check=True)
    if arguments.model == LLAMA:
        ours = collections.Counter({"attention": ours["attention"], "matmuls": ours.total() - ours["attention"]})
    theirs = json.loads(answer.stdout.splitlines()[-1])
    version = theirs.pop("torch")
    # Of the pairs that PyTorch's formula has, those that are seen.
    seen = (arguments.seq + 1, 2 * arguments.seq)
    print(f"{arguments.model}, {arguments.batch} x {arguments.seq}, FLOPs of forward and backward\n"
          f"{'operation':12} {'butterfly':>18} {f'PyTorch {version}':>22}")
    differ = False
    for part in sorted(set(ours) | set(theirs)):
        other = theirs.get(part, 0)
        note = ""
        if part == "attention":
            note = f"  x {seen[0]}/{seen[1]} = {other * seen[0] // seen[1]}, the pairs that are seen"
            other = other * seen[0] // seen[1]
        same = ours[part] == other
        differ |= not same
        print(f"{part:12} {ours[part]:18} {theirs.get(part, 0):22}{note}  {'equal' if same else 'DIFFERENT'}")
    if again:
        print(f"computed again in the backward pass, not counted: {again}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
