"""The second model of each family for make_family_golden.py: other numbers of heads, tied where the first is not,
biases, windows shorter than the prompt, and prompts longer than the original context of a rope scaling."""

SIZES = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 96,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 12}
MOE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "num_key_value_heads": 3,
    "moe_intermediate_size": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def rope(theta: float, **more) -> dict:
    return {"rope_type": "default", "rope_theta": theta} | more


def shape(config_class: str, **changes) -> tuple:
    return config_class, SIZES | changes


SECOND = {
    "gpt2_two": ("GPT2Config", {"vocab_size": 64, "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 96,
                                "bos_token_id": None, "eos_token_id": None}),
    "llama_two": shape("LlamaConfig", tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                       rope_parameters=rope(5e5)),
    "llama_yarn_two": shape("LlamaConfig", head_dim=16, rope_parameters=YARN | {"beta_fast": 4.0, "beta_slow": 0.5}),
    "mistral_two": shape("MistralConfig", sliding_window=5, head_dim=16, tie_word_embeddings=True),
    "mixtral_two": shape("MixtralConfig", intermediate_size=16, num_local_experts=8, num_experts_per_tok=3,
                         sliding_window=None, num_key_value_heads=3, tie_word_embeddings=True),
    "qwen2_two": shape("Qwen2Config", tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3_two": shape("Qwen3Config", head_dim=12, num_key_value_heads=3, attention_bias=True),
    "qwen2_moe_two": shape("Qwen2MoeConfig", **MOE | {"num_experts": 8}, shared_expert_intermediate_size=24),
    "qwen3_moe_two": shape("Qwen3MoeConfig", **MOE | {"num_experts": 5}, head_dim=12, norm_topk_prob=True,
                           tie_word_embeddings=True),
    "olmo2_two": shape("Olmo2Config", num_key_value_heads=3, rope_parameters=rope(5e5)),
    "olmoe_two": shape("OlmoeConfig", intermediate_size=16, num_key_value_heads=3, num_experts=12,
                       num_experts_per_tok=4),
    "smollm3_two": shape("SmolLM3Config", num_hidden_layers=5, tie_word_embeddings=False),
    "granite_two": shape("GraniteConfig", tie_word_embeddings=True, attention_bias=True, embedding_multiplier=3.0,
                         residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=0.5),
    "granite_moe_two": shape("GraniteMoeConfig", intermediate_size=16, num_local_experts=8, num_experts_per_tok=4,
                             tie_word_embeddings=False, embedding_multiplier=2.0, residual_multiplier=0.7,
                             attention_multiplier=0.3, logits_scaling=2.0),
    "phi3_two": shape("Phi3Config", num_key_value_heads=3, sliding_window=None,
                      rope_parameters=rope(2e4, partial_rotary_factor=0.5)),
    "gemma_two": shape("GemmaConfig", head_dim=12, num_key_value_heads=3),
    "gemma2_two": shape("Gemma2Config", head_dim=12, num_hidden_layers=3, sliding_window=4, query_pre_attn_scalar=12,
                        attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "gemma3_two": shape("Gemma3TextConfig", head_dim=8, num_hidden_layers=7, sliding_window=4, intermediate_size=24,
                        query_pre_attn_scalar=8,
                        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                         "sliding_attention": rope(2e4)}),
    "glm_two": shape("GlmConfig", head_dim=8, num_key_value_heads=3, attention_bias=False, eos_token_id=[1]),
    "glm4_two": shape("Glm4Config", head_dim=16, attention_bias=True, eos_token_id=[1]),
    "glm4_moe_two": shape("Glm4MoeConfig", **MOE, head_dim=16, n_routed_experts=6, n_shared_experts=1,
                          first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=False),
    "starcoder2_two": shape("Starcoder2Config", sliding_window=None, num_key_value_heads=3, use_bias=True,
                            tie_word_embeddings=False),
    "gpt_neox_two": shape("GPTNeoXConfig", num_attention_heads=2,
                          rope_parameters=rope(1e4, partial_rotary_factor=1.0)),
    "phi2_two": shape("PhiConfig", num_key_value_heads=3, intermediate_size=96,
                      rope_parameters=rope(1e4, partial_rotary_factor=0.75)),
    "falcon_two": shape("FalconConfig", new_decoder_architecture=True, num_kv_heads=1, bias=False),
    "mpt_two": ("MptConfig", {"vocab_size": 64, "d_model": 24, "n_heads": 3, "n_layers": 2, "expansion_ratio": 4,
                              "max_seq_len": 96}),
    "cohere_two": shape("CohereConfig", num_key_value_heads=3, logit_scale=0.5, rope_parameters=rope(3e4)),
    "deepseek_v2_two": shape("DeepseekV2Config", **LATENT, n_shared_experts=1, topk_method="greedy",
                             norm_topk_prob=False, rope_parameters=YARN | {"mscale": 0.9, "mscale_all_dim": 0.9}),
    "deepseek_v3_two": shape("DeepseekV3Config", **LATENT, n_shared_experts=1, routed_scaling_factor=1.5, rms_norm_eps=1e-3,
                             rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    "gpt_oss_two": shape("GptOssConfig", head_dim=16, intermediate_size=16, num_hidden_layers=3, sliding_window=5,
                         num_local_experts=6, num_experts_per_tok=3,
                         rope_parameters=YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": True}),
}
