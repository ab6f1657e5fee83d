"""How soon the report can be used with 10,000 operators in it: `python benchmarks/report_page.py`.

Opens the page from disk in headless Chromium, several times, and sorts and filters the table. Needs playwright (the dev
extra). Exits with 1 if a median is over its bar.
"""

import argparse
import gzip
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

import environment
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "pure"))
import samples

from chip.show.report import page, sources

RECORDS, READY_MS, GZIP_BYTES = 10_000, 1500, 1_500_000
# from the event to the next frame that shows its effect
CHANGE = """async ([selector, kind, value]) => {
  const node = document.querySelector(selector), start = performance.now();
  if (kind === "click") node.click();
  else { node.value = value; node.dispatchEvent(new Event("input")); }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
CHANGES = {
    "unfold": ["#operators details.raw summary", "click", ""],
    "sort": ["#operators th[data-column=p50_us] button", "click", ""],
    "filter": ["#operators input[type=search]", "input", "rms_norm 4096"],
    "filter_roofline": ["#roofline input[type=search]", "input", "linear"],
}


def visit(browser, url):
    tab = browser.new_page()
    tab.goto(url)
    found = {"ready": float(tab.evaluate("document.documentElement.dataset.ready"))}
    found |= {name: tab.evaluate(CHANGE, change) for name, change in CHANGES.items()}
    tab.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("build/report_page.json"))
    parser.add_argument("--visits", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        results = pathlib.Path(folder) / "operators.jsonl"
        results.write_text(samples.measurement_lines(RECORDS))
        index = page.write(pathlib.Path(folder) / "site", sources.gather([results], "Benchmark"))
        sandbox = [] if os.getuid() else ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        visits = [visit(browser, index.as_uri()) for _ in range(options.visits)]
        result = {
            "environment": {**environment.describe(), "browser": browser.version},
            "records": RECORDS,
            "page_bytes": index.stat().st_size,
            "gzip_bytes": len(gzip.compress(index.read_bytes())),
            "median_ms": {name: statistics.median(v[name] for v in visits) for name in visits[0]},
        }
        browser.close()
    small = result["gzip_bytes"] <= GZIP_BYTES
    result["kept"] = small and all(ms <= READY_MS for ms in result["median_ms"].values())
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    shown = ", ".join(f"{name} {ms:.0f} ms" for name, ms in result["median_ms"].items())
    print(f"{RECORDS} operators, {result['gzip_bytes'] / 1e6:.2f} MB gzipped: {shown} (medians of {options.visits})")
    print(
        f"{'kept  ' if result['kept'] else 'MISSED'} usable within {READY_MS} ms, under {GZIP_BYTES / 1e6:g} MB gzipped"
    )
    return 0 if result["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
