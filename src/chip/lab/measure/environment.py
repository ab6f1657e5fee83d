"""What a number was measured on and with. No host name, no user, no paths: a profile is made to be shared."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import chip
from chip.lab.measure.device import Device, cores, cpu_title

LIBRARIES = ("triton", "numpy", "transformers", "vllm", "nvidia-ml-py", "nvidia-cublas", "nvidia-cudnn-cu13")


def environment(device: Device) -> dict[str, Any]:
    import torch

    about: dict[str, Any] = {
        "chip": chip.__version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release().split('-')[0]}",
        "cpu": cpu_title(),
        "cpu_cores": cores(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        "device": device.title,
        "device_kind": device.kind,
        "units": device.sm_count,
        "notes": list(device.notes),
    }
    if device.kind == "cuda":
        about["compute_capability"] = device.compute_capability
        about["cudnn"] = torch.backends.cudnn.version()
    if device.gpu is not None:
        about["driver"] = device.gpu.driver()
        about["power_limit_w"] = device.gpu.power_limit_w()
        about["boost_hz"] = device.boost_hz
    return about


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
