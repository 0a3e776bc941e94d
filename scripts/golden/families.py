# SPDX-License-Identifier: Apache-2.0
"""The tiny models of test/golden that this project makes itself: one row each.

A row is (folder, model_type, config values). Every row shares COMMON; a row states only what makes its family different
from a plain Llama, so it shows what the golden model tests. Prompts have up to 150 ids, so windows of 24 and original
lengths of 64 are crossed by every model that has them.

`legacy` rows write config.json in the older form (rope_theta, rope_scaling, torch_dtype) and the
others in the newer form (rope_parameters, dtype): a server must read both. The weights of `drawn` rows
are not stored (describe.py); prefer that.
"""

VOCAB = 384

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

FAMILIES = [
    {
        # LayerNorm with bias, a plain two-matrix MLP, biases everywhere, a window on all layers,
        # tied head.
        "folder": "starcoder2",
        "drawn": True,
        "model_type": "starcoder2",
        "config": {
            "intermediate_size": 128,
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "sliding_window": 24,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
        "legacy": True,
    },
    {
        # LayerNorm with bias, RoPE on a quarter of each head, biases on q, k and v only.
        "folder": "stablelm",
        "drawn": True,
        "model_type": "stablelm",
        "config": {
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "head_dim": 16,
            "use_qkv_bias": True,
            "layer_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "legacy": True,
    },
    {
        # Norms before and after each sub-layer, interleaved RoPE on half of each head, fused gate
        # and up.
        "folder": "glm4",
        "drawn": True,
        "model_type": "glm4",
        "config": {
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "head_dim": 16,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    },
    {
        # A shared expert with a sigmoid gate; routing weights are not renormalised; the first
        # layer is dense.
        "folder": "qwen2-moe",
        "drawn": True,
        "model_type": "qwen2_moe",
        "config": {
            "num_hidden_layers": 3,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    },
    {
        # MLA without a low-rank query, softmax routing limited to groups, yarn with mscale on the
        # softmax scale.
        "folder": "deepseek-v2",
        "drawn": True,
        "model_type": "deepseek_v2",
        "config": {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "head_dim": 16,
            "first_k_dense_replace": 1,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 2,
            "topk_group": 1,
            "topk_method": "group_limited_greedy",
            "norm_topk_prob": False,
            "routed_scaling_factor": 2.0,
            "rope_parameters": dict(YARN, rope_theta=10000.0, mscale=0.707, mscale_all_dim=0.707),
        },
        "legacy": True,
    },
    {
        # A clamp that takes effect in the experts, with a slope other than that of the published models.
        "folder": "gpt-oss-clamp",
        "weights_of": "gpt-oss",
        "model_type": "gpt_oss",
        "config": {
            "head_dim": 16,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "swiglu_limit": 0.4,
            "swiglu_alpha": 2.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
    },
    {
        # Layers from max_window_layers on see 24 positions; the earlier ones see all.
        "folder": "qwen2-window",
        "weights_of": "qwen2",
        "model_type": "qwen2",
        "config": {
            "intermediate_size": 160,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        "legacy": True,
    },
    {
        "folder": "mixtral",
        "drawn": True,
        "model_type": "mixtral",
        "config": {
            "head_dim": 16,
            "intermediate_size": 24,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        "legacy": True,
    },
    {
        "folder": "qwen3-moe",
        "drawn": True,
        "model_type": "qwen3_moe",
        "config": {
            "head_dim": 16,
            "intermediate_size": 160,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    },
    {
        # Other Qwens have windows on some layers; this family has them on all.
        "folder": "qwen3-moe-window",
        "weights_of": "qwen3-moe",
        "model_type": "qwen3_moe",
        "config": {
            "head_dim": 16,
            "intermediate_size": 160,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    },
    {
        "folder": "llama-yarn",
        "weights_of": "llama-3",
        "model_type": "llama",
        "config": {
            "head_dim": 16,
            "intermediate_size": 160,
            "rope_parameters": dict(YARN, rope_theta=10000.0),
        },
        "legacy": True,
    },
    {
        "folder": "llama-linear",
        "weights_of": "llama-3",
        "model_type": "llama",
        "config": {
            "head_dim": 16,
            "intermediate_size": 160,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
    },
    {
        # The base is fixed for the longest length that can be served (see fix_rope_length in
        # golden.py).
        "folder": "llama-dynamic",
        "weights_of": "llama-3",
        "model_type": "llama",
        "config": {
            "head_dim": 16,
            "intermediate_size": 160,
            "max_position_embeddings": 64,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
        "legacy": True,
    },
    {
        # Long factors from the first token on, on three quarters of each head.
        "folder": "phi-3-long",
        "weights_of": "phi-3",
        "model_type": "phi3",
        "config": {
            "intermediate_size": 160,
            "rms_norm_eps": 1e-5,
            "original_max_position_embeddings": 64,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 64,
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5],
                "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
            },
        },
        "legacy": True,
    },
    {
        "folder": "gemma-3",
        "drawn": True,
        "model_type": "gemma3_text",
        "config": {
            "head_dim": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 7,
            "sliding_window": 24,
            "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    },
    {
        # Local layers keep their own unscaled base; the global layers scale positions by 8.
        "folder": "gemma-3-linear",
        "weights_of": "gemma-3",
        "model_type": "gemma3_text",
        "config": {
            "head_dim": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 7,
            "layer_types": [
                "sliding_attention",
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "sliding_attention",
                "full_attention",
                "sliding_attention",
            ],
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    },
    {
        # The first Gemma: norms before each sub-layer only, one key/value head, embeddings scaled by
        # a square root that bf16 cannot hold.
        "folder": "gemma",
        "drawn": True,
        "model_type": "gemma",
        "config": {
            "hidden_size": 48,
            "head_dim": 32,
            "num_key_value_heads": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "legacy": True,
    },
    {
        # Interleaved RoPE on half of each head, biases on q, k and v, no norms after sub-layers.
        "folder": "glm",
        "drawn": True,
        "model_type": "glm",
        "config": {
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "head_dim": 16,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        },
        "legacy": True,
    },
    {
        # Each head of q and k has its own LayerNorm; both sub-layers read the same input. Sizes
        # that vector widths, segments and two ranks do not divide evenly: six heads, an odd
        # vocabulary, an ffn whose half is 36.
        "folder": "stablelm-2",
        "drawn": True,
        "model_type": "stablelm",
        "config": {
            "num_hidden_layers": 2,
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 72,
            "vocab_size": 389,
            "head_dim": 16,
            "use_qkv_bias": False,
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "layer_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
            },
        },
    },
    {
        # Learned positions, a fused tensor of q, k and v, transposed matrices, tied head.
        "folder": "gpt2",
        "drawn": True,
        "model_type": "gpt2",
        "config": {
            "num_key_value_heads": 4,
            "n_inner": 96,
            "max_position_embeddings": 200,
            "tie_word_embeddings": True,
        },
    },
    {
        # Learned positions after two rows that none has, ReLU.
        "folder": "opt",
        "drawn": True,
        "model_type": "opt",
        "config": {
            "num_key_value_heads": 4,
            "ffn_dim": 96,
            "max_position_embeddings": 200,
            "tie_word_embeddings": True,
        },
    },
    {
        # q, k and v of each head side by side in one tensor, RoPE on a quarter of each head, two
        # norms of the same input.
        "folder": "gpt-neox",
        "drawn": True,
        "model_type": "gpt_neox",
        "config": {"num_key_value_heads": 4},
    },
    {
        # The same with heads that share keys.
        "folder": "falcon",
        "drawn": True,
        "model_type": "falcon",
        "config": {
            "num_attention_heads": 8,
            "num_kv_heads": 4,
            "num_key_value_heads": 4,
            "ffn_hidden_size": 96,
            "new_decoder_architecture": True,
            "tie_word_embeddings": True,
        },
    },
]
