"""Ask llm-analysis 0.2.2, through its LLMAnalysis class.

- At its default efficiencies (1.0), or at those that a scenario gives (`efficiency`: of FLOPS, of memory).
- It knows no H200, so the GPU is given by its data-sheet numbers, as its GPUConfig allows.
- Its MLP has two matrices; a gated one has three, so the width given is 1.5 times the real one,
  which makes the weight bytes right. Its MLP FLOP count assumes a width of 4 x hidden whatever is given.
"""

import sys

from asking import GPUS, gated_config_of, serve

sys.path.pop(0)  # this file's own name would shadow the package


def load():
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import GPUConfig, ModelConfig

    def analysis(model, gpu, flops_efficiency=None, memory_efficiency=None):
        m, g = gated_config_of(model), GPUS[gpu]
        width = m["intermediate_size"] * 3 // 2
        return LLMAnalysis(
            ModelConfig(
                name=model,
                num_layers=m["num_hidden_layers"],
                n_head=m["num_attention_heads"],
                num_key_value_heads=m["num_key_value_heads"],
                hidden_dim=m["hidden_size"],
                vocab_size=m["vocab_size"],
                max_seq_len=m["max_position_embeddings"],
                ffn_embed_dim=width,
                expansion_ratio=width / m["hidden_size"],
            ),
            GPUConfig(
                name=gpu,
                mem_per_GPU_in_GB=g["memory_gb"],
                hbm_bandwidth_in_GB_per_sec=g["bandwidth_gb_s"],
                intra_node_bandwidth_in_GB_per_sec=g["nvlink_gb_s"],
                intra_node_min_message_latency=8e-6,
                peak_fp16_TFLOPS=g["tflops"],
            ),
            flops_efficiency=flops_efficiency,
            hbm_memory_efficiency=memory_efficiency,
        )

    def answer(scenario):
        summary = analysis(scenario["model"], scenario["gpu"], *scenario.get("efficiency", ())).inference(
            batch_size_per_gpu=scenario["batch"],
            seq_len=scenario["prompt"],
            num_tokens_to_generate=scenario["output"],
        )
        return summary["prefill_latency"] * 1e3, summary["decode_latency"] * 1e3

    return answer


if __name__ == "__main__":
    serve(load)
