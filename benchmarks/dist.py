"""Build wheel and sdist so that the same commit gives the same bytes: times are the commit's, owners nobody's.

    make dist          # into dist/, with their sha256

setuptools honours SOURCE_DATE_EPOCH in a wheel; the sdist's tar is packed again here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit_time() -> int:
    words = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


def packed_again(data: bytes, when: int) -> bytes:
    """The same files of a .tar.gz, in order, with one time, owner and mode."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda m: m.name):
            fresh = tarfile.TarInfo(member.name)
            fresh.type, fresh.size, fresh.mtime, fresh.linkname = member.type, member.size, when, member.linkname
            fresh.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(fresh, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(out.getvalue(), 9, mtime=when)


def build(folder: Path, when: int, kinds: Sequence[str] = ("build_wheel", "build_sdist")) -> list[Path]:
    os.environ["SOURCE_DATE_EPOCH"] = str(when)
    os.chdir(ROOT)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # what was deleted since would be in the wheel
    folder.mkdir(parents=True, exist_ok=True)
    code = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    made = []
    for what in kinds:
        done = subprocess.run(
            [sys.executable, "-c", code, what, str(folder)], capture_output=True, text=True, check=True
        )
        made.append(folder / done.stdout.strip().splitlines()[-1])
    for sdist in made[1:]:
        sdist.write_bytes(packed_again(sdist.read_bytes(), when))
    return made


if __name__ == "__main__":
    for path in build(ROOT / "dist", commit_time()):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
