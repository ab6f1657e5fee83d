"""Reports to look at in a browser."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "pure"))

import samples  # noqa: E402

from chip.show.report import page, sources  # noqa: E402

H200 = ROOT / "results" / "h200"
__all__ = ["H200", "samples", "unfold", "written"]


def written(folder, *results, title="Report"):
    return page.write(folder, sources.gather(results, title)).as_uri()


def unfold(page, section=""):
    """All sections and tables, or those of a section."""
    page.wait_for_selector("html[data-ready]", state="attached")
    for _ in range(3):  # what is folded may hold more that is
        page.evaluate("(all) => document.querySelectorAll(all).forEach(d => d.unfold())", f"{section} details.raw")
