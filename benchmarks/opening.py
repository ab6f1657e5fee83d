"""How soon the explorer shows something useful: `python benchmarks/opening.py`.

Starts `chip serve` on a free port of loopback and opens the page in headless Chromium, several times: until the first
prediction and the first ranking are on the screen, and until all GPUs are ranked (the first visit has nothing
remembered). Needs playwright (the dev extra). Exits with 1 if a bar is missed.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import environment
from playwright.sync_api import sync_playwright

ANSWERED_MS, RANKED_MS = 300, 1000


def visit(browser, url):
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.goto(url)
    tab.wait_for_selector("html[data-answered]")
    tab.wait_for_selector("#ranking[aria-busy=false] tbody tr", timeout=120_000)
    found = {
        "answered": float(tab.evaluate("document.documentElement.dataset.answered")),
        "ranked": float(tab.evaluate("document.getElementById('ranking').dataset.took")),
    }
    tab.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("build/opening.json"))
    parser.add_argument("--visits", type=int, default=9)
    options = parser.parse_args()
    command = [sys.executable, "-m", "chip", "serve", "--port", "0", "--json", "--time-limit", "60"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            url = json.loads(server.stdout.readline())["url"]
            sandbox = [] if os.getuid() else ["--no-sandbox"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
            visits = [visit(browser, url) for _ in range(options.visits)]
            version = browser.version
            browser.close()
        finally:
            server.terminate()
    answered = statistics.median(v["answered"] for v in visits)
    kept = {
        f"something useful within {ANSWERED_MS} ms (median)": answered <= ANSWERED_MS,
        f"all GPUs ranked within {RANKED_MS} ms, cold": visits[0]["ranked"] <= RANKED_MS,
    }
    result = {
        "environment": {**environment.describe(), "browser": version},
        "answered_ms": [v["answered"] for v in visits],
        "ranked_ms": [v["ranked"] for v in visits],
        "kept": all(kept.values()),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    warm = statistics.median(v["ranked"] for v in visits[1:] or visits)
    print(f"answered {answered:.0f} ms, ranked {visits[0]['ranked']:.0f} ms cold, {warm:.0f} ms again")
    for name, is_kept in kept.items():
        print(f"{'kept  ' if is_kept else 'MISSED'} {name}")
    return 0 if result["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
