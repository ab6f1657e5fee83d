"""What a run is recorded as having been served in: the `dtype` and `kv_dtype` that a prediction of it is asked for."""

from __future__ import annotations

from chip.dtypes import AUTO
from chip.models import describe
from chip.run import Job
from chip.types import ChipError

# vLLM's names of formats that it makes of 16-bit weights as it loads them
ON_LOAD = {"fp8": "fp8", "fp8_per_tensor": "fp8", "mxfp4": "mxfp4"}


def of_run(job: Job, engine: str) -> tuple[str, str]:
    """(dtype, kv_dtype). HF engines drop a config's quantisation where weights are random, and run it from files."""
    quantised = job.config.get("quantization_config") is not None and (engine == "vllm" or job.folder is not None)
    if engine == "vllm" and not quantised and "quantization" in job.settings:
        asked = job.settings["quantization"]
        if asked not in ON_LOAD:
            raise ChipError(
                f"--engine-setting quantization={asked[:40]}: a run in it could not be predicted; known of 16-bit "
                f"weights: {', '.join(ON_LOAD)}"
            )
        return ON_LOAD[asked], _kv_dtype(job)
    if quantised:
        return describe(job.config, job.model, job.model).dtype, _kv_dtype(job)
    return job.dtype, _kv_dtype(job) if engine == "vllm" else AUTO


def _kv_dtype(job: Job) -> str:
    """As vLLM's kv_cache_dtype says; what the model's config says where it says nothing."""
    asked = job.settings.get("kv_cache_dtype", AUTO)
    return "fp8" if asked.startswith("fp8") else AUTO if asked == AUTO else job.dtype
