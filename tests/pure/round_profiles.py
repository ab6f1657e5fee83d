"""A GPU with round numbers, measured by nobody: exact expectations that no bundled profile can move."""

from chip.files import artifact, codec
from chip.types import Ceiling, HardwareProfile

ROUND = {
    "hbm_read": (1e12, "B/s"),
    "hbm_copy": (1e12, "B/s"),
    "matmul_fp32": (1e13, "FLOP/s"),
    "matmul_fp16": (1e14, "FLOP/s"),
    "matmul_bf16": (1e14, "FLOP/s"),
    "launch_graph": (1e-6, "s"),
}


def round_profile(**changes):
    """1 TB/s, 100 TFLOP/s in 16 bits, 1 us a launch, each from 10 % less to 10 % more; links of an A100."""
    ceilings = {k: Ceiling(v, 0.9 * v, 1.1 * v, unit, "made up for tests") for k, (v, unit) in ROUND.items()}
    settings = {
        "name": "round", "device": "Round GPU", "kind": "cuda", "spec": "a100", "units": 100,
        "memory_bytes": 64 * 2**30, "l2_bytes": 32 * 2**20, "ceilings": ceilings,
    }  # fmt: skip
    return HardwareProfile(**{**settings, **changes})


def write_profile(path, profile):
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(profile), {"made": "in a test"}))
    return str(path)
