"""Sizes of published models, written down without their config.json at hand, and parameters in billions.

The totals are what the name or the card says where that was known, else what transformers' default config or these
sizes give. A total that fits is no proof of each size: hold them against the files on the hub where these can be had.
"""

MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
PUBLISHED = {
    "moonshotai/Kimi-K2-Instruct": (1026, {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
        "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 384, "num_experts_per_tok": 8,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 1536, **MLA,
        "vocab_size": 163840, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    }),
    "MiniMaxAI/MiniMax-M2": (229, {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
        "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True, "rotary_dim": 64,
        "vocab_size": 200064, "max_position_embeddings": 196608, "tie_word_embeddings": False,
    }),
    "zai-org/GLM-4.6": (357, {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True, "hidden_size": 5120,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 92, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 160, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "n_group": 1, "use_qk_norm": True,
        "partial_rotary_factor": 0.5, "vocab_size": 151552, "max_position_embeddings": 202752,
    }),
    "meta-llama/Llama-4-Scout-17B-16E": (107.8, {
        "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layers": [], "vocab_size": 202048,
            "max_position_embeddings": 10485760, "tie_word_embeddings": False,
        },
    }),
    "meta-llama/Llama-4-Maverick-17B-128E": (400, {
        "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "no_rope_layers": [], "vocab_size": 202048,
            "max_position_embeddings": 1048576, "tie_word_embeddings": False,
        },
    }),
    "swiss-ai/Apertus-8B-2509": (8.05, {
        "architectures": ["ApertusForCausalLM"], "model_type": "apertus", "hidden_act": "xielu", "hidden_size": 4096,
        "intermediate_size": 21504, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 131072, "max_position_embeddings": 65536, "tie_word_embeddings": False,
    }),
    "LGAI-EXAONE/EXAONE-4.0-32B": (32, {
        "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "hidden_size": 5120,
        "intermediate_size": 27392, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16, "vocab_size": 102400,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
    }),
    "baidu/ERNIE-4.5-21B-A3B-PT": (21.8, {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": 2560,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 20,
        "num_key_value_heads": 4, "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "moe_layer_end_index": 27, "moe_layer_interval": 1, "use_bias": False,
        "vocab_size": 103424, "max_position_embeddings": 131072, "tie_word_embeddings": True,
    }),
    "tencent/Hunyuan-A13B-Instruct": (80.4, {
        "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "hidden_size": 4096,
        "intermediate_size": 3072, "moe_intermediate_size": [3072] * 32, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128, "num_experts": 64,
        "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "use_qk_norm": True, "vocab_size": 128167,
        "max_position_embeddings": 32768, "tie_word_embeddings": True,
    }),
    "rednote-hilab/dots.llm1.inst": (142, {
        "architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "hidden_size": 4096, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32,
        "n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
        "vocab_size": 152064, "max_position_embeddings": 32768, "tie_word_embeddings": False,
    }),
    "microsoft/Phi-3.5-MoE-instruct": (41.9, {
        "architectures": ["PhiMoEForCausalLM"], "model_type": "phimoe", "attention_bias": True, "hidden_size": 4096,
        "intermediate_size": 6400, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_local_experts": 16, "num_experts_per_tok": 2, "lm_head_bias": True, "vocab_size": 32064,
        "max_position_embeddings": 131072, "sliding_window": 131072, "tie_word_embeddings": False,
    }),
    "inclusionAI/Ling-mini-2.0": (16.3, {
        "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe", "hidden_size": 2048,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "num_hidden_layers": 20, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True, "use_bias": False,
        "use_qkv_bias": False, "partial_rotary_factor": 0.5, "vocab_size": 157184, "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }),
    "zai-org/GLM-4.7-Flash": (29.9, {
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "hidden_size": 2048,
        "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
        "num_key_value_heads": 20, "n_shared_experts": 1, "n_routed_experts": 64, "num_experts_per_tok": 4,
        "first_k_dense_replace": 1, "n_group": 1, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880, "max_position_embeddings": 202752,
        "tie_word_embeddings": False,
    }),
    "XiaomiMiMo/MiMo-7B-RL": (7.6, {
        "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True, "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151680, "max_position_embeddings": 32768, "tie_word_embeddings": False,
    }),
    "mistralai/Ministral-3-8B-Instruct-2512": (8.4, {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": {
            "model_type": "ministral3", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
            "max_position_embeddings": 262144, "tie_word_embeddings": False,
        },
    }),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (30.5, {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "text_config": {
            "model_type": "qwen3_vl_moe_text", "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "mlp_only_layers": [], "decoder_sparse_step": 1, "vocab_size": 151936,
            "max_position_embeddings": 262144,
        }, "tie_word_embeddings": False,
    }),
    "Qwen/Qwen2.5-VL-7B-Instruct": (7.6, {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 3584,
        "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "vocab_size": 152064, "max_position_embeddings": 128000, "tie_word_embeddings": False,
        "vision_config": {"depth": 32, "hidden_size": 1280},
    }),
    "OpenGVLab/InternVL3-8B": (7.6, {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config": {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
            "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "vocab_size": 151674, "max_position_embeddings": 32768, "tie_word_embeddings": False,
        }, "vision_config": {"hidden_size": 1024},
    }),
    "ibm-granite/granite-4.0-h-small": (32.2, {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_size": 4096,
        "intermediate_size": 768, "shared_intermediate_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 72, "num_experts_per_tok": 10,
        "layer_types": [*["mamba"] * 5, "attention", *(["mamba"] * 9 + ["attention"]) * 3, *["mamba"] * 4],
        "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
        "mamba_expand": 2, "mamba_conv_bias": True, "position_embedding_type": "nope", "vocab_size": 100352,
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    }),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (79.7, {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
        "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "decoder_sparse_step": 1, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts": 512, "num_experts_per_tok": 10, "mlp_only_layers": [], "partial_rotary_factor": 0.25,
        "vocab_size": 151936, "max_position_embeddings": 262144, "tie_word_embeddings": False,
    }),
    "nvidia/Nemotron-H-8B-Base-8K": (8.1, {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 4096,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "intermediate_size": 21504, "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "use_conv_bias": True, "mlp_hidden_act": "relu2", "vocab_size": 131072,
        "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }),
    "tiiuae/Falcon-H1-7B-Instruct": (7.59, {
        "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_size": 3072,
        "intermediate_size": 12288, "num_hidden_layers": 44, "num_attention_heads": 12, "num_key_value_heads": 2,
        "head_dim": 128, "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_n_groups": 1,
        "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_conv_bias": True, "mamba_rms_norm": False,
        "vocab_size": 130049, "max_position_embeddings": 262144, "tie_word_embeddings": False,
    }),
    "LiquidAI/LFM2-1.2B": (1.17, {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 2048, "block_ff_dim": 12288,
        "intermediate_size": 12288, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_bias": False, "vocab_size": 65536,
        "max_position_embeddings": 128000, "tie_word_embeddings": True,
    }),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (49.1, {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 2304,
        "intermediate_size": 9216, "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 32,
        "num_key_value_heads": 32, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "q_lora_rank": None, "vocab_size": 163840, "model_max_length": 1048576,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "short_conv_kernel_size": 4,
        }, "tie_word_embeddings": False,
    }),
    "deepseek-ai/DeepSeek-V3.2-Exp": (672, {
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "q_lora_rank": 1536, **MLA,
        "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "vocab_size": 129280,
        "max_position_embeddings": 163840, "tie_word_embeddings": False,
    }),
}  # fmt: skip
