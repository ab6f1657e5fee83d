"""make the site: the report of an H200 and the explorer, which computes in its visitor's browser, for any static host.

    make site                                # into build/site; the first time with a download of 6 MB
    python benchmarks/website.py FOLDER https://example.org/chip/    # where it will stand, for previews of links

What computes is the wheel of this checkout and Pyodide, Python as WebAssembly, from npm: checked against its hash and
never committed. Both lie in runtime/.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path

from dist import ROOT, build, commit_time

from chip.files import output
from chip.show import webpage
from chip.show.report import page as report_page
from chip.show.report import sources
from chip.show.serve import page

VERSION = "314.0.7"
TARBALL = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
INTEGRITY = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
PLAIN = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide-lock.json")
PACKED = ("pyodide.asm.wasm", "python_stdlib.zip")  # worker.js unpacks them, so that it needs nothing of the host
MOST_BYTES = 12_000_000  # to load for an own question
CACHE = ROOT / "build" / f"pyodide-{VERSION}"
RESULTS = [ROOT / "results" / "h200", ROOT / "src/chip/data/profiles", ROOT / "src/chip/data/points/h200"]
EXPLORER = "explorer.html"


def runtime(cache: Path = CACHE) -> Path:
    """The folder of Pyodide's files, as they are loaded; fetched where it is not there."""
    if not all((cache / name).exists() for name in (*PLAIN, *(f"{name}.gz" for name in PACKED))):
        with urllib.request.urlopen(TARBALL, timeout=120) as response:
            data = response.read()
        if base64.b64encode(hashlib.sha512(data).digest()).decode() != INTEGRITY:
            raise SystemExit(f"{TARBALL}: is not the file that was expected; nothing of it was used")
        cache.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as files:
            for name in (*PLAIN, *PACKED):
                content = files.extractfile(f"package/{name}").read()  # type: ignore[union-attr]
                if name in PACKED:
                    (cache / f"{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))
                else:
                    (cache / name).write_bytes(content)
    return cache


def explorer(folder: Path, fetched: Path, address: str = "") -> None:
    """`explorer.html`, `worker.js`, `runtime/`, and a picture for previews of links."""
    beside = folder / "runtime"
    beside.mkdir(parents=True, exist_ok=True)
    wheel, *_ = build(beside, commit_time(), ["build_wheel"])
    for file in fetched.iterdir():
        shutil.copy(file, beside)
    loaded = sum(file.stat().st_size for file in (wheel, *(beside / file.name for file in fetched.iterdir())))
    if loaded > MOST_BYTES:
        raise SystemExit(f"{loaded} bytes to load, over {MOST_BYTES}")
    shutil.copy(webpage.STATIC / "worker.js", folder)
    shutil.copy(ROOT / "docs" / "img" / "explorer.png", folder / "preview.png")
    made = page.without_server({"wheel": wheel.name, "bytes": loaded}, address)
    output.write(folder / EXPLORER, made.text, webpage.KIND)


def main(folder: Path, address: str = "") -> None:
    explorer(folder, runtime(), address)
    report_page.write_packed(folder, sources.gather(RESULTS, "An H200, measured"), EXPLORER)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB; look at it with: python -m http.server --directory {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site"), *sys.argv[2:3])
