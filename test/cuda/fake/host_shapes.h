// SPDX-License-Identifier: Apache-2.0
/* Shapes of real models for the tests on the fake device.
 * Thread: plain data. */
#ifndef SLUICE_TEST_CUDA_FAKE_HOST_SHAPES_H
#define SLUICE_TEST_CUDA_FAKE_HOST_SHAPES_H

/* Layers as real models have them; the weights are dummies that the device generates. */
static const struct {
    const char *name, *config;
} models[] = {
    {"an 8B Llama",
     "{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":4096,"
     "\"intermediate_size\":14336,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
     "\"num_hidden_layers\":2,\"max_position_embeddings\":16384}"},
    {"a Qwen3 with 128 experts",
     "{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":2048,"
     "\"intermediate_size\":6144,\"moe_intermediate_size\":768,\"num_experts\":128,"
     "\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
     "\"num_hidden_layers\":2,\"max_position_embeddings\":16384}"},
    {"a GPT-OSS",
     "{\"model_type\":\"gpt_oss\",\"vocab_size\":201088,\"hidden_size\":2880,"
     "\"intermediate_size\":2880,\"num_local_experts\":32,\"num_attention_heads\":64,"
     "\"num_hidden_layers\":2,\"layer_types\":[\"sliding_attention\",\"full_attention\"]}"},
    {"a DeepSeek-V2",
     "{\"model_type\":\"deepseek_v2\",\"vocab_size\":102400,\"hidden_size\":2048,"
     "\"intermediate_size\":10944,\"moe_intermediate_size\":1408,\"n_routed_experts\":64,"
     "\"n_shared_experts\":2,\"num_experts_per_tok\":6,\"first_k_dense_replace\":1,"
     "\"q_lora_rank\":null,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
     "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":16,\"num_hidden_layers\":2,\"max_position_embeddings\":16384}"},
    {"a Gemma 2",
     "{\"model_type\":\"gemma2\",\"vocab_size\":256000,\"hidden_size\":3584,"
     "\"intermediate_size\":14336,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
     "\"head_dim\":256,\"num_hidden_layers\":2,\"max_position_embeddings\":16384,"
     "\"query_pre_attn_scalar\":256,\"sliding_window\":4096,\"attn_logit_softcapping\":50.0,"
     "\"final_logit_softcapping\":30.0,\"hidden_activation\":\"gelu_pytorch_tanh\"}"},
    {"a Qwen3 with FP8 experts",
     "{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":1024,"
     "\"intermediate_size\":6144,\"moe_intermediate_size\":1536,\"num_experts\":32,"
     "\"num_experts_per_tok\":8,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
     "\"num_hidden_layers\":1,\"num_attention_heads\":16,\"num_key_value_heads\":4,"
     "\"head_dim\":128,\"max_position_embeddings\":16384,\"quantization_config\":{"
     "\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
     "\"activation_scheme\":\"dynamic\"}}"},
    {"a Gemma 4 with experts",
     "{\"model_type\":\"gemma4_text\",\"vocab_size\":262144,\"hidden_size\":2816,"
     "\"intermediate_size\":2112,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
     "\"head_dim\":256,\"global_head_dim\":512,\"num_global_key_value_heads\":2,"
     "\"attention_k_eq_v\":true,\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,"
     "\"num_experts\":128,\"top_k_experts\":8,\"moe_intermediate_size\":704,"
     "\"num_hidden_layers\":2,\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
     "\"sliding_window\":1024,\"max_position_embeddings\":16384,"
     "\"final_logit_softcapping\":30.0}"},
    {"a Gemma 4 of the E series",
     "{\"model_type\":\"gemma4_text\",\"vocab_size\":262144,\"hidden_size\":1536,"
     "\"intermediate_size\":6144,\"num_attention_heads\":8,\"num_key_value_heads\":1,"
     "\"head_dim\":256,\"global_head_dim\":512,\"num_kv_shared_layers\":2,"
     "\"use_double_wide_mlp\":true,\"num_hidden_layers\":4,\"layer_types\":["
     "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"],"
     "\"max_position_embeddings\":16384,\"final_logit_softcapping\":30.0}"},
    {"a Gemma 3n",
     "{\"model_type\":\"gemma3n_text\",\"hidden_size\":2048,\"intermediate_size\":8192,"
     "\"num_hidden_layers\":4,\"num_kv_shared_layers\":2,\"activation_sparsity_pattern\":["
     "0.95,0.0,0.95,0.0],\"layer_types\":[\"sliding_attention\",\"full_attention\","
     "\"sliding_attention\",\"full_attention\"],\"max_position_embeddings\":16384}"},
    {"a Llama 4",
     "{\"model_type\":\"llama4_text\",\"vocab_size\":202048,\"hidden_size\":5120,"
     "\"intermediate_size\":8192,\"intermediate_size_mlp\":16384,\"num_attention_heads\":40,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"num_local_experts\":16,"
     "\"num_hidden_layers\":4,\"attention_chunk_size\":8192,\"floor_scale\":8192,"
     "\"max_position_embeddings\":16384}"},
    {"a Hy 4",
     "{\"model_type\":\"hy_v4\",\"vocab_size\":120832,\"hidden_size\":2816,"
     "\"intermediate_size\":6912,\"moe_intermediate_size\":768,\"num_attention_heads\":32,"
     "\"n_routed_experts\":64,\"num_hidden_layers\":3,\"max_position_embeddings\":16384}"},
};

#endif
