#!/usr/bin/env python3
"""Models of random configurations, each family in turn, beside PyTorch: what the golden models do not happen to have.

    pip install -r tools/requirements.txt
    tools/compare_random_models.py [--seeds 1 2 3] [--only NAME...] [--test build/release/bin/golden_test]

Takes the configurations of make_family_golden.py and make_encoder_golden.py, draws heads, widths, layers, windows, norms,
activations, biases, ropes and experts anew, lets transformers compute each model, and runs the golden tests on them:
logits and hidden rows within 1e-4, and the same bits by every instruction set, chunk and split. A configuration that
transformers itself refuses is named and left out. One that we refuse fails with our sentence: read whether it says why.
Exit status 1: a test failed.
"""

import argparse
import copy
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import make_encoder_golden as encoders
import make_family_golden as families

# What a value is drawn from, where a configuration has it. Vocabularies of encoders stay: their texts count on them.
CHOICES = {
    "num_hidden_layers": [1, 2, 3, 4, 5], "n_layer": [1, 2, 3], "n_layers": [1, 2, 3],
    "intermediate_size": [20, 36, 44, 64, 72, 100], "moe_intermediate_size": [12, 16, 20, 32, 40],
    "hidden_dim": [20, 64, 100], "embedding_size": [8, 16, 24],
    "num_experts": [3, 4, 5, 6, 8], "num_local_experts": [3, 4, 5, 6, 8], "num_experts_per_tok": [1, 2, 3],
    "n_shared_experts": [1, 2], "shared_expert_intermediate_size": [24, 40], "decoder_sparse_step": [1, 2],
    "routed_scaling_factor": [1.0, 2.5, 0.7], "norm_topk_prob": [True, False],
    "logits_scaling": [1.0, 4.0, 0.5], "residual_multiplier": [0.3, 1.0, 1.7], "embedding_multiplier": [1.0, 5.0],
    "attention_multiplier": [0.1, 0.4], "logit_scale": [0.1, 2.0], "query_pre_attn_scalar": [8, 16, 100],
    "attn_logit_softcapping": [1.0, 20.0, None], "final_logit_softcapping": [2.0, 30.0, None],
    "partial_rotary_factor": [0.25, 0.5, 0.75, 1.0], "rope_local_base_freq": [10.0, 5000.0],
    "no_rope_layer_interval": [2, 3], "max_window_layers": [0, 1, 2],
    "attention_bias": [True, False], "use_qkv_bias": [True, False], "mlp_bias": [True, False], "bias": [True, False],
    "use_bias": [True, False], "use_qk_norm": [True, False], "new_decoder_architecture": [True, False],
    "parallel_attn": [True, False], "multi_query": [True, False], "use_parallel_residual": [True, False],
}
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
ACTIVATIONS = {
    **dict.fromkeys(("LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config", "GemmaConfig"),
                    ["gelu", "silu", "gelu_pytorch_tanh", "gelu_new"]),
    **dict.fromkeys(("StarCoder2Config", "PhiConfig", "GPTNeoXConfig"), ["gelu", "silu", "gelu_new", "relu"]),
}


GOLDEN_FAMILIES = families.FAMILIES | families.SECOND
GOLDEN_ENCODERS = encoders.MODELS


def draw_heads(values: dict, draw: random.Random) -> None:
    if "num_attention_heads" not in values or "kv_lora_rank" in values:
        return
    heads = kv_heads = draw.choice([1, 2, 3, 4])
    if values.get("num_key_value_heads", values["num_attention_heads"]) != values["num_attention_heads"]:
        heads *= draw.choice([1, 2, 3, 4])
    head_dim = draw.choice([8, 16, 24, 32])
    values["num_attention_heads"] = heads
    if "num_key_value_heads" in values:
        values["num_key_value_heads"] = kv_heads
    if "head_dim" in values:
        values |= {"head_dim": head_dim, "hidden_size": draw.choice([24, 32, 40, 48, 64, 72])}
    else:
        values["hidden_size"] = heads * head_dim


def draw_rope(values: dict, draw: random.Random) -> None:
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    if "rope_theta" in rope:
        rope["rope_theta"] = draw.choice([100.0, 1234.5, 10000.0, 500000.0])
    if rope.get("rope_type") == "longrope":
        width = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
        pairs = int(width * values.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))) // 2
        rope |= {"short_factor": [1.0 + 0.3 * i for i in range(pairs)],
                 "long_factor": [1.5 + 0.7 * i for i in range(pairs)]}


def draw_values(values: dict, draw: random.Random) -> None:
    for name, choices in CHOICES.items():
        if name in values:
            values[name] = draw.choice(choices)


def family(config_class: str, values: dict, draw: random.Random) -> dict:
    values = copy.deepcopy(values)
    draw_values(values, draw)
    if config_class == "DeepseekV2Config":
        values["norm_topk_prob"] = False  # transformers computes nothing else, so we refuse it
    draw_heads(values, draw)
    draw_rope(values, draw)
    if "vocab_size" in values:
        values["vocab_size"] = draw.randint(50, 300)
    if values.get("sliding_window"):
        values["sliding_window"] = draw.choice([2, 3, 5, 9, 13, 17, 31, 64])
    for name in EPSILONS:
        if draw.random() < 0.5:
            values[name] = draw.choice([1e-2, 1e-3, 1e-5])
    if draw.random() < 0.6:
        values["tie_word_embeddings"] = draw.random() < 0.5
    if config_class in ACTIVATIONS and draw.random() < 0.4:
        values["hidden_act"] = draw.choice(ACTIVATIONS[config_class])
    return values


def t5(values: dict, draw: random.Random) -> None:
    values |= {"d_model": draw.choice([16, 24, 40, 48]), "d_kv": draw.choice([8, 12, 20]),
               "num_heads": draw.choice([1, 2, 4]), "d_ff": draw.choice([20, 64, 100]),
               "num_layers": draw.choice([1, 2, 3]), "num_decoder_layers": draw.choice([1, 2, 4]),
               "relative_attention_num_buckets": draw.choice([4, 5, 6, 7, 8, 32]),
               "relative_attention_max_distance": draw.choice([17, 20, 128]),
               "layer_norm_epsilon": draw.choice([1e-6, 1e-3])}
    if draw.random() < 0.6:
        values["feed_forward_proj"] = draw.choice(["relu", "gated-gelu", "gated-silu", "gelu"])


def encoder(config_class: str, values: dict, draw: random.Random) -> dict:
    values = copy.deepcopy(values)
    if "d_model" in values:
        t5(values, draw)
        return values
    draw_values(values, draw)
    draw_heads(values, draw)
    if "num_hidden_groups" in values:
        values["num_hidden_layers"] = 2 * values["num_hidden_groups"]
    if "n_heads" in values:
        heads = draw.choice([1, 2, 3])
        values |= {"n_heads": heads, "dim": heads * draw.choice([8, 16, 24]), "activation": draw.choice(["gelu", "relu"])}
    if config_class == "ModernBertConfig":
        values |= {"norm_eps": draw.choice([1e-5, 1e-3]), "local_attention": draw.choice([6, 10, 16, 40]),
                   "global_attn_every_n_layers": draw.choice([1, 2, 3])}
    elif config_class not in ("NomicBertConfig", "DistilBertConfig"):
        values |= {"layer_norm_eps": draw.choice([1e-12, 1e-5, 1e-3]),
                   "hidden_act": draw.choice(["gelu", "gelu_new", "relu", "silu"])}
    return values


def make_all(seed: int, only: list[str], folder: Path) -> None:
    draw = random.Random(seed)
    drawn = {name: (config, family(config, values, draw))
             for name, (config, values) in sorted(GOLDEN_FAMILIES.items())}
    drawn_encoders = {name: (model, config, encoder(config, values, draw))
                      for name, (model, config, values) in sorted(GOLDEN_ENCODERS.items())}
    families.FAMILIES, families.SECOND, encoders.MODELS = drawn, {}, drawn_encoders
    for kind, module, names in (("families", families, drawn), ("encoders", encoders, drawn_encoders)):
        (folder / kind).mkdir(parents=True)
        for name in names:
            # Their weights are stored in blocks whose sizes fit the golden models alone.
            if name.endswith(("_mxfp4", "_fp8", "gpt_oss_dense")) or (only and name not in only):
                continue
            part = folder / "unfinished"
            try:
                module.make(name, part)
                (part / name).rename(folder / kind / name)
            except Exception as error:  # noqa: BLE001: whatever transformers says to such a configuration
                print(f"seed {seed}: transformers has no {name} of this configuration: {str(error)[:120]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="*", default=[], help="families or encoders by name")
    parser.add_argument("--test", type=Path, default=Path("build/release/bin/golden_test"))
    parser.add_argument("--keep", type=Path, help="keep the models in this folder, which must not be there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / str(seed)
            make_all(seed, options.only, folder)
            # Whether a GGUF file can hold a model depends on what was drawn.
            tests = "*GoldenFamily.*:*GoldenEncoder.*:-*Gguf*"
            run = subprocess.run([options.test, f"--gtest_filter={tests}", "--gtest_brief=1"], text=True,
                                 env=os.environ | {"BUTTERFLY_GOLDEN_MODELS": str(folder)}, capture_output=True, check=False)
        lines = run.stdout.splitlines()
        worst = max((float(line.split("difference ")[1].split()[0]) for line in lines if "largest difference" in line),
                    default=0.0)
        shown = [line for line in lines if "largest difference" not in line] if run.returncode != 0 else []
        print("\n".join([*shown, run.stderr + f"seed {seed}: {'FAILED' if run.returncode else 'passed'}, families' largest "
                         f"difference {worst:.2g} of the largest logit"]), flush=True)
        failed += run.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
