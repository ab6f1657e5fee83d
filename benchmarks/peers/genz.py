"""Ask genz-llm 0.0.16, through prefill_moddeling and decode_moddeling at their default efficiency (1.0).

- It knows no H200 (its GH200 has twice the dense bf16 FLOPS), so the GPU is given by its data-sheet numbers.
- Decode beams (Bb) default to 4; one beam is asked for. Decode is modelled at the end of the output,
  so half of it is given, which makes the step the average one.
"""

from asking import GPUS, gated_config_of, serve


def load():
    from GenZ import ModelConfig, decode_moddeling, prefill_moddeling

    def model_config(name):
        m = gated_config_of(name)
        return ModelConfig(
            model=name,
            vocab_size=m["vocab_size"],
            max_model_len=m["max_position_embeddings"],
            hidden_size=m["hidden_size"],
            intermediate_size=m["intermediate_size"],
            num_ffi=2,  # gated MLP: two matrices up, one down
            num_decoder_layers=m["num_hidden_layers"],
            num_attention_heads=m["num_attention_heads"],
            num_key_value_heads=m["num_key_value_heads"],
        )

    def system(name):
        g = GPUS[name]
        return {
            "Flops": g["tflops"],
            "Memory_size": g["memory_gb"],
            "Memory_BW": g["bandwidth_gb_s"],
            "ICN": g["nvlink_gb_s"],
            "real_values": True,
        }

    def answer(scenario):
        common = {
            "model": model_config(scenario["model"]),
            "system_name": system(scenario["gpu"]),
            "batch_size": scenario["batch"],
            "input_tokens": scenario["prompt"],
            "bits": "bf16",
        }
        prefill = prefill_moddeling(**common)
        decode = decode_moddeling(**common, output_tokens=scenario["output"] // 2, Bb=1)
        return prefill["Latency"], decode["Latency"]

    return answer


if __name__ == "__main__":
    serve(load)
