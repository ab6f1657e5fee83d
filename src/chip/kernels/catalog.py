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
LEAST_ARCH = "sm_80"


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
    found = re.search(r"^// Needs: (\S+)( or later)?$", _source(stem), re.MULTILINE)
    assert found, f"cuda/{stem}.cu does not say what it needs"
    return found[1] + (found[2] or "")


def runs_on(stem: str, arch: str) -> bool:
    least, _, later = needs(stem).partition(" ")
    return number(arch) >= number(least) if later else arch == least


def number(arch: str) -> int:
    """90 of sm_90a."""
    found = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if not found or int(found[1]) < number_of_least():
        raise ChipError(f"architecture {arch!r} is not one of ours; choose of {', '.join(ARCHS)}")
    return int(found[1])


def number_of_least() -> int:
    return int(LEAST_ARCH.removeprefix("sm_"))


def arch_of(capability: str) -> str:
    """The architecture to compile for on a device: 9.0 has instructions of its own, hence the a."""
    plain = "sm_" + capability.replace(".", "")
    return plain + "a" if plain == "sm_90" else plain


def entries() -> list[KernelEntry]:
    found = []
    for name in triton_names():
        path = HERE / "triton" / f"{name}.py"
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found.append(KernelEntry(name, "triton", "any Triton GPU", _first(text), f"triton/{path.name}"))
    for stem in cuda_stems():
        lines = [line[2:].strip() for line in _source(stem).splitlines() if line.startswith("//")]
        prose = " ".join(line for line in lines if not line.startswith("Needs: "))
        found.append(KernelEntry(stem, "cuda", needs(stem), _first(prose), f"cuda/{stem}.cu"))
    return found


def _first(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.])\s", " ".join(text.split()), maxsplit=1)[0]


def _source(stem: str) -> str:
    return (CUDA / f"{stem}.cu").read_text(encoding="utf-8")
