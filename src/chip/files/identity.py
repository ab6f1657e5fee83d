"""What makes a model the same model again: the content of its config and of its weight files. A name is a label."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip.types import ChipError

NOT_THE_MODEL = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")  # of who saved it, or of a scenario
ENDS_BYTES = 1 << 16  # of a weight file that are hashed at either end, beside its name and size


def of_config(config: Mapping[str, Any]) -> str:
    """16 hex digits. The order of fields does not matter, nor does who saved the file."""
    content = {k: v for k, v in config.items() if k not in NOT_THE_MODEL}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def of_model(config: Mapping[str, Any], folder: Path | None = None) -> str:
    """The identity of a config with random weights, or with the weight files in `folder`."""
    return of_config(config) if folder is None else f"{of_config(config)}+{_of_weights(folder)}"


@lru_cache(maxsize=64)
def _of_weights(folder: Path) -> str:
    """Name, size, first and last 64 KiB of each file: a hash of all of it would take minutes."""
    parts = hashlib.sha256()
    try:
        for path in sorted(folder.glob("*.safetensors")):
            size = path.stat().st_size
            parts.update(f"{path.name}\0{size}\0".encode(errors="surrogateescape"))
            with open(path, "rb") as file:
                parts.update(file.read(ENDS_BYTES))
                file.seek(max(0, size - ENDS_BYTES), os.SEEK_SET)
                parts.update(file.read(ENDS_BYTES))
    except OSError as e:
        raise ChipError(f"{folder}: its weights cannot be read ({e.strerror})") from None
    return parts.hexdigest()[:16]
