"""vLLM from version to version: what decides how its steps run. Pull requests are those of vllm-project/vllm."""

from chip.engines.versions import EngineVersion

VERSIONS = (
    EngineVersion("0.14", True, "fa3", 256, "asynchronous scheduling by default: #27614"),
    EngineVersion(
        "0.12", False, "fa3", 256, "shared experts on a stream of their own: #26440, #28406; on NVIDIA's GPUs: #30085"
    ),
    EngineVersion("0.7", False, "fa3", 0, "FlashAttention-3 on Hopper: #12093; the host works between two steps"),
    EngineVersion("0", False, "fa2|flash", 0, "vllm-flash-attn 2.6.1 in requirements-cuda.txt of 0.5.4 to 0.6.1"),
)
