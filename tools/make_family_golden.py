#!/usr/bin/env python3
"""Writes tests/golden/families/NAME/{config.json, model.safetensors, logits.f32}: a tiny random model of each family of
`transformers` and its logits.

    python tools/make_family_golden.py --out tests/golden/families [--second] [NAME ...]

Logits are PyTorch's in fp32, [tokens, vocab], after each token of the prompt (7 * i * i + 3 * i) % vocab for i from 0,
little-endian. The prompt is longer than every window and than the original context of every rope scaling; the number of
tokens is what the file's size says. Weights are drawn wide enough that every choice of a family shows in the logits.
"""

import argparse
import json
from pathlib import Path

import safetensors.torch
import torch
import transformers
from second_family_shapes import SECOND

VOCAB = 80
TOKENS = 40
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


# Every layer is dense. Heads are not as long as what is cached, nor values as long as queries.
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 99,
}


OSS = {
    "head_dim": 16,
    "sliding_window": 8,
    "intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_parameters": YARN | {"beta_fast": 2.0, "beta_slow": 0.1, "truncate": False},
}
EXPERTS = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "topk_group": 2,
}


def longrope(pairs: int) -> dict:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.7 * i for i in range(pairs)],
        "original_max_position_embeddings": 16,
    }


def family(config_class: str, **changes) -> tuple:
    return config_class, SIZES | changes


FAMILIES = {
    "llama_linear": family("LlamaConfig", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "llama_llama3": family("LlamaConfig", rope_parameters=LLAMA3),
    "llama_yarn": family("LlamaConfig", rope_parameters=YARN),
    "mistral": family("MistralConfig", sliding_window=9, head_dim=8),
    "mistral_nemo": family("MistralConfig", sliding_window=None, head_dim=16),
    "qwen2_window": family("Qwen2Config", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": family("Qwen3Config", head_dim=16, tie_word_embeddings=True),
    "olmo2": family("Olmo2Config", tie_word_embeddings=True),
    "smollm3": family("SmolLM3Config", num_hidden_layers=4, intermediate_size=32),
    "granite": family(
        "GraniteConfig",
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.0625,
        logits_scaling=8.0,
    ),
    "phi3": family("Phi3Config", sliding_window=11, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "phi3_longrope": family("Phi3Config", original_max_position_embeddings=16, rope_parameters=longrope(4)),
    "phi4_mini": family(
        "Phi3Config",
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        original_max_position_embeddings=16,
        rope_parameters=longrope(6) | {"partial_rotary_factor": 0.75},
    ),
    "gemma": family("GemmaConfig", head_dim=16),
    "gemma2": family(
        "Gemma2Config",
        head_dim=8,
        sliding_window=7,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
    ),
    "gemma2_scaled": family("Gemma2Config", num_hidden_layers=1, head_dim=8, query_pre_attn_scalar=24),
    "gemma3": family(
        "Gemma3TextConfig",
        num_hidden_layers=6,
        head_dim=8,
        sliding_window=6,
        query_pre_attn_scalar=8,
        intermediate_size=32,
    ),
    "glm": family("GlmConfig", head_dim=8, eos_token_id=[1]),
    "glm4": family("Glm4Config", head_dim=8, eos_token_id=[1]),
    "starcoder2": family("Starcoder2Config", sliding_window=10),
    "gpt_neox": family(
        "GPTNeoXConfig", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "gpt_neox_serial": family(
        "GPTNeoXConfig",
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    ),
    "phi2": family("PhiConfig", num_key_value_heads=4),
    "falcon": family("FalconConfig", multi_query=True),
    "falcon_grouped": family("FalconConfig", new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "mpt": ("MptConfig", {"vocab_size": VOCAB, "d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 4,
                          "max_seq_len": 128}),
    "mpt_six_heads": ("MptConfig", {"vocab_size": VOCAB, "d_model": 48, "n_heads": 6, "n_layers": 1,
                                    "expansion_ratio": 4, "max_seq_len": 128}),
    "cohere": family("CohereConfig"),
    "deepseek_v2_lite": family("DeepseekV2Config", **LATENT | {"q_lora_rank": None}),
    "deepseek_v2": family("DeepseekV2Config", **LATENT),
    "deepseek_v3": family(
        "DeepseekV3Config", **LATENT, rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 1.1}
    ),
    # Matrices of blocks in FP8 with a scale for each 128 x 128, some of which are cut off.
    "deepseek_v3_fp8": family("DeepseekV3Config", **LATENT, intermediate_size=150),
    # Attention of gpt-oss; a plain MLP in place of the experts.
    "gpt_oss_dense": family(
        "GptOssConfig",
        head_dim=16,
        sliding_window=8,
        num_local_experts=2,
        rope_parameters=YARN | {"beta_fast": 2.0, "beta_slow": 0.1, "truncate": False},
    ),
    "gpt_oss": family("GptOssConfig", **OSS),
    # Experts as the published models have them; attention has yarn too.
    "gpt_oss_mxfp4": family("GptOssConfig", **OSS),
    "deepseek_v2_moe": family(
        "DeepseekV2Config",
        **LATENT
        | EXPERTS
        | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5, "norm_topk_prob": False},
    ),
    "deepseek_v3_moe": family("DeepseekV3Config", **LATENT | EXPERTS | {"routed_scaling_factor": 2.5}),
    "mixtral": family("MixtralConfig", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": family(
        "Qwen2MoeConfig",
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=40,
    ),
    "qwen2_moe_dense": family(
        "Qwen2MoeConfig",
        num_hidden_layers=4,
        num_experts=4,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        norm_topk_prob=True,
        decoder_sparse_step=2,
        mlp_only_layers=[1],
    ),
    "qwen3_moe": family(
        "Qwen3MoeConfig",
        head_dim=16,
        num_experts=9,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        norm_topk_prob=True,
    ),
    "olmoe": family("OlmoeConfig", intermediate_size=16, num_experts=8, num_experts_per_tok=2),
    "granite_moe": family(
        "GraniteMoeConfig",
        intermediate_size=24,
        num_local_experts=5,
        num_experts_per_tok=2,
        embedding_multiplier=6.0,
        residual_multiplier=0.22,
        attention_multiplier=0.125,
        logits_scaling=4.0,
    ),
    "glm4_moe": family(
        "Glm4MoeConfig",
        head_dim=16,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        use_qk_norm=True,
        attention_bias=True,
    ),
}


class DenseMlp(torch.nn.Module):
    """What a block of gpt-oss would have without experts; its place returns two things."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.gate_proj = torch.nn.Linear(dim, width, bias=False)
        self.up_proj = torch.nn.Linear(dim, width, bias=False)
        self.down_proj = torch.nn.Linear(width, dim, bias=False)

    def forward(self, x: torch.Tensor) -> tuple:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)), None


def widen(model: torch.nn.Module) -> None:
    """Norms and biases differ from their first values, and matrices are large enough for scores that differ."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 1.3 / parameter.shape[-1] ** 0.5)
            elif "norm" in name or "ln_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(0.0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.3)


def uses(model: torch.nn.Module, ids: torch.Tensor) -> str:
    """How many tokens each expert of the first layer that has some receives."""
    seen: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda m, i, output: seen.append(output[2]))
        for name, module in model.named_modules()
        if name.endswith(("mlp.gate", "mlp.router", "block_sparse_moe.gate", "block_sparse_moe.router"))
    ]
    with torch.no_grad():
        model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return f", tokens by expert {torch.bincount(seen[0].flatten()).tolist()}" if seen else ""


def to_fp8(model: torch.nn.Module) -> dict:
    """Rounds the matrices of blocks to what FP8 holds, read as bf16; returns the tensors of the file."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or ".layers." not in name:
            tensors[name] = parameter.detach().clone()
            continue
        rows, cols = (-(-size // 128) for size in parameter.shape)
        scales = torch.ones(rows, cols)
        quantised = torch.empty(parameter.shape, dtype=torch.float8_e4m3fn)
        for row in range(rows):
            for col in range(cols):
                block = (slice(128 * row, 128 * row + 128), slice(128 * col, 128 * col + 128))
                scales[row, col] = parameter[block].abs().max() / 448
                quantised[block] = (parameter[block] / scales[row, col]).to(torch.float8_e4m3fn)
                value = (quantised[block].float() * scales[row, col]).to(torch.bfloat16)
                parameter.data[block] = value.float()
        tensors[name] = quantised
        tensors[name + "_scale_inv"] = scales
    return tensors


def to_mxfp4(model: torch.nn.Module) -> dict:
    """Rounds the experts' matrices to what MXFP4 holds; returns the tensors of the file, as gpt-oss has them."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([values, -values])
    tensors = {}
    for name, parameter in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = parameter.detach().clone()
            continue
        rows = parameter.detach().transpose(1, 2)  # [experts, outputs, inputs]
        groups = rows.reshape(*rows.shape[:2], -1, 32)
        exponents = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True) / 6)).add(1)
        nearest = (groups / torch.exp2(exponents)).unsqueeze(-1).sub(values).abs().argmin(-1)
        rounded = (values[nearest] * torch.exp2(exponents)).reshape(rows.shape)
        parameter.data.copy_(rounded.transpose(1, 2))
        tensors[name + "_blocks"] = (nearest[..., 0::2] | nearest[..., 1::2] << 4).to(torch.uint8).contiguous()
        tensors[name + "_scales"] = (exponents.squeeze(-1) + 127).to(torch.uint8).contiguous()
    return tensors


def make(name: str, out: Path) -> None:
    config_class, values = (FAMILIES | SECOND)[name]
    torch.manual_seed(sum(name.encode()))
    config = getattr(transformers, config_class)(**values)
    config.dtype = torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    if name == "gpt_oss_dense":
        for layer in model.model.layers:
            layer.mlp = DenseMlp(config.hidden_size, config.intermediate_size)
    widen(model)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith("_mxfp4"):
        safetensors.torch.save_file(to_mxfp4(model), folder / "model.safetensors", metadata={"format": "pt"})
        config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
        config.save_pretrained(folder)
    elif name.endswith("_fp8"):
        safetensors.torch.save_file(to_fp8(model), folder / "model.safetensors", metadata={"format": "pt"})
        config.quantization_config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
        config.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    if name == "gpt_oss_dense":
        path = folder / "config.json"
        path.write_text(path.read_text().replace('"num_local_experts": 2', '"num_local_experts": 0'))
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids = torch.tensor([[(7 * i * i + 3 * i) % config.vocab_size for i in range(TOKENS)]])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].float()
    (folder / "logits.f32").write_bytes(logits.numpy().astype("<f4").tobytes())
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size} bytes, logits up to {logits.abs().max():.3f}{uses(model, ids)}", flush=True)
    json.loads((folder / "config.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--second", action="store_true", help="the second model of each family")
    parser.add_argument("names", nargs="*", default=[])
    arguments = parser.parse_args()
    for name in arguments.names or (SECOND if arguments.second else FAMILIES):
        make(name, arguments.out)


if __name__ == "__main__":
    main()
