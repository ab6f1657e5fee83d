"""What kernels there are, told by their files alone: no torch, Triton or nvcc is needed to list them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from chip.types import ChipError

HERE = Path(__file__).parent
CUDA = HERE / "cuda"
NOT_KERNELS = ("__init__", "language", "rows")
LADDERS = ("row_normalize", "hgemm", "skinny")  # CUDA kernels that come in steps: cuda/<name>_<number>_<step>.cu
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120")
LEAST_ARCH = 80


@dataclass(frozen=True)
class KernelEntry:
    name: str
    language: str  # "triton" or "cuda"
    needs: str  # least architecture, or the only one
    what: str
    file: str


def triton_names() -> list[str]:
    return sorted(p.stem for p in (HERE / "triton").glob("*.py") if p.stem not in NOT_KERNELS)


def cuda_stems() -> list[str]:
    """Every CUDA source that is compiled, steps of a ladder in their order."""
    return sorted(p.stem for p in CUDA.glob("*.cu"))


def steps(ladder: str) -> list[str]:
    return [s for s in cuda_stems() if re.fullmatch(rf"{ladder}_\d_\w+", s)]


def kernels() -> list[str]:
    """What `check` and `bench` take: a Triton kernel, or a ladder with all its steps."""
    return [*triton_names(), *LADDERS]


def needs(stem: str) -> str:
    line = re.search(r"^// Needs: (\S+)( or later)?$", _source(stem), re.MULTILINE)
    assert line, f"cuda/{stem}.cu does not say what it needs"
    return line[1] + (line[2] or "")


def runs_on(stem: str, arch: str) -> bool:
    least, _, later = needs(stem).partition(" ")
    return number(arch) >= number(least) if later else arch == least


def number(arch: str) -> int:
    """90 of sm_90a."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if not match or int(match[1]) < LEAST_ARCH:
        raise ChipError(f"architecture {arch!r} is not one of ours; choose of {', '.join(ARCHS)}")
    return int(match[1])


def arch_of(capability: str) -> str:
    """The architecture to compile for on a device: 9.0 has instructions of its own, hence the a."""
    plain = "sm_" + capability.replace(".", "")
    return plain + "a" if plain == "sm_90" else plain


def entries() -> list[KernelEntry]:
    rows = []
    for name in triton_names():
        path = HERE / "triton" / f"{name}.py"
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        rows.append(KernelEntry(name, "triton", "any Triton GPU", _first(text), f"triton/{path.name}"))
    for stem in cuda_stems():
        lines = [line[2:].strip() for line in _source(stem).splitlines() if line.startswith("//")]
        prose = " ".join(line for line in lines if not line.startswith("Needs: "))
        rows.append(KernelEntry(stem, "cuda", needs(stem), _first(prose), f"cuda/{stem}.cu"))
    return rows


def _first(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]


def _source(stem: str) -> str:
    return (CUDA / f"{stem}.cu").read_text(encoding="utf-8")
