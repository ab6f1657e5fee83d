"""Compiling the CUDA sources: nvcc, one shared library a file, in parallel, cached by content.

The sources include no torch header and export plain C functions that take pointers, so a file compiles in seconds
where one that includes torch takes a minute, needs neither ninja nor a CUDA build of torch, and can be built on a node
without a GPU. Where torch keeps its extensions (TORCH_EXTENSIONS_DIR, else its default) we keep ours.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from chip.lab.kernels import catalog
from chip.types import ChipError

FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-shared", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr")
DEBUG_FLAGS = ("-DCHIP_DEBUG",)
LEAST_TOOLKIT = 12
Tell = Callable[[str], None]
_lock = threading.Lock()


@dataclass(frozen=True)
class Built:
    stem: str
    arch: str
    path: Path
    cached: bool


def folder() -> Path:
    """Where libraries are kept; set TORCH_EXTENSIONS_DIR where the home folder is slow or shared between machines."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "torch_extensions") / "chip_kernels"


@lru_cache(maxsize=1)
def nvcc() -> str:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for path in (f"{home}/bin/nvcc" if home else "", shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"):
        if path and os.access(path, os.X_OK):
            return path
    raise ChipError(
        "nvcc is not installed: CUDA kernels need the CUDA toolkit 12 or later; install it or set CUDA_HOME"
    )


@lru_cache(maxsize=1)
def toolkit() -> tuple[int, int]:
    """Version of the toolkit; a reason where it cannot be had or is too old."""
    done = subprocess.run([nvcc(), "--version"], capture_output=True, text=True)
    release = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if not release:
        raise ChipError(f"{nvcc()} does not tell its version: {(done.stderr or done.stdout).strip()[:120]}")
    version = int(release[1]), int(release[2])
    if version[0] < LEAST_TOOLKIT:
        raise ChipError(
            f"{nvcc()} is of CUDA {release[1]}.{release[2]}; the kernels need CUDA {LEAST_TOOLKIT} or later"
        )
    return version


@cache
def check_arch(arch: str) -> None:
    """An error where this toolkit cannot compile for it."""
    done = subprocess.run([nvcc(), "--list-gpu-code"], capture_output=True, text=True)
    known = done.stdout.split()
    if known and f"sm_{catalog.number(arch)}" not in known:  # it lists sm_90 and means sm_90a too
        version = ".".join(map(str, toolkit()))
        raise ChipError(f"nvcc of CUDA {version} cannot compile for {arch}; it knows {', '.join(known)}")


def command(stem: str, arch: str, debug: bool, out: Path) -> list[str]:
    # the exact architecture and no PTX: sm_90a's instructions exist nowhere else, and it halves the time
    target = f"arch={arch.replace('sm', 'compute')},code={arch}"
    flags = (*FLAGS, *(DEBUG_FLAGS if debug else ()))
    return [nvcc(), *flags, "-gencode", target, "-o", str(out), str(catalog.CUDA / f"{stem}.cu")]


def place(stem: str, arch: str, debug: bool = False) -> Path:
    """The library's file, named by everything that goes into it."""
    version = toolkit()
    texts = [(catalog.CUDA / f"{stem}.cu").read_bytes(), *(p.read_bytes() for p in sorted(catalog.CUDA.glob("*.cuh")))]
    flags = (*FLAGS, *(DEBUG_FLAGS if debug else ()), arch, *map(str, version))
    key = hashlib.sha256(b"\0".join([*texts, " ".join(flags).encode()])).hexdigest()[:16]
    return folder() / f"{stem}-{arch}{'-debug' if debug else ''}-{key}.so"


def compile_one(stem: str, arch: str, debug: bool = False) -> Built:
    """Compile, or find what was compiled before. Another process that does the same at once does no harm."""
    path = place(stem, arch, debug)
    if path.exists():
        return Built(stem, arch, path, True)
    check_arch(arch)
    temp = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command(stem, arch, debug, temp), capture_output=True, text=True)
        if done.returncode:
            raise ChipError(f"{stem}.cu does not compile for {arch}: {_first_error(done.stderr)}")
        os.replace(temp, path)
    except OSError as e:
        raise ChipError(
            f"{folder()}: cannot be written ({e.strerror}); set TORCH_EXTENSIONS_DIR to a folder that can"
        ) from None
    finally:
        with suppress(OSError):
            temp.unlink()  # gone already where all went well
    return Built(stem, arch, path, False)


def compile_all(stems: Sequence[str], arch: str, debug: bool = False, tell: Tell = lambda text: None) -> list[Built]:
    """Compile the `stems` that run on `arch`, as many at a time as there are cores."""
    wanted = [s for s in stems if catalog.runs_on(s, arch)]

    def one(stem: str) -> Built:
        tell(f"{stem}.cu for {arch}")
        return compile_one(stem, arch, debug)

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(one, wanted))


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return (errors or lines or ["nvcc said nothing"])[0][:240]


def unusable(stem: str, device_type: str, capability: str | None) -> str:
    """Why a CUDA kernel cannot run on a device; nothing where it can."""
    if device_type != "cuda" or not capability or "." not in capability:
        return "no NVIDIA GPU: CUDA kernels can be compiled here, not run"
    arch = catalog.arch_of(capability)
    if not catalog.runs_on(stem, arch):
        return f"needs {catalog.needs(stem)}; this GPU is {arch}"
    return ""


class BuildSettings:
    """How libraries are built on first use: by the command line, before anything is loaded."""

    debug = False


@cache
def library(stem: str, capability: str) -> ctypes.CDLL:
    """The loaded library of a source for the card found, compiled on first use."""
    with _lock:
        return ctypes.CDLL(str(compile_one(stem, catalog.arch_of(capability), BuildSettings.debug).path))


@cache
def function(stem: str, symbol: str, capability: str, *argtypes: Any) -> Any:
    """A function of a library. Ours return nothing, or what went wrong; the stream is their last argument."""
    call = getattr(library(stem, capability), symbol)
    call.argtypes, call.restype = [*argtypes, ctypes.c_void_p], ctypes.c_char_p
    return call


@cache
def capability(index: int) -> str:
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability(index)))


def launch(stem: str, symbol: str, device: Any, argtypes: tuple[Any, ...], *values: Any) -> None:
    """Call a library's function on the device's current stream."""
    import torch

    call = function(stem, symbol, capability(device.index or 0), *argtypes)
    error = call(*values, torch.cuda.current_stream(device).cuda_stream)
    if error:
        raise ChipError(f"{stem}: {error.decode()}")
