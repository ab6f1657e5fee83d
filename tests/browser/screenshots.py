"""Take the pictures of docs/gallery.md: `python tests/browser/screenshots.py docs/img`. Needs playwright and Chromium.

First a newcomer's three tasks, each within three clicks or one command; then the pages as they come.
"""

import html
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

from playwright.sync_api import sync_playwright

from chip.decoders.library import CONFIGS
from chip.show.report import page as report_page
from chip.show.report import sources
from chip.show.serve import server

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = [ROOT / "results" / "h200", ROOT / "src" / "chip" / "data" / "profiles"]
COMPARED = "#?at=largest&model=llama-3.1-8b&gpu=h200&beside=h100&engine=vllm&batch=8&prompt=1024&output=128"
WIDE = {"width": 1280, "height": 900}
TALL = 2600
PHONE = {"width": 390, "height": 844}
BENCH = "tests/data/clients/vllm-bench-detailed.json --gpu h200"


def save(target, path):
    target.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def opened(browser, url, viewport=WIDE, theme="light"):
    tab = browser.new_page(viewport=viewport, color_scheme=theme)
    tab.goto(url)
    tab.wait_for_selector("#answer[aria-busy=false] .metric, html[data-ready] #overview .metric")
    tab.wait_for_selector("#ranking[aria-busy=false] tbody tr, #overview .metric", timeout=120_000)
    tab.wait_for_selector("#timeline-view svg, #overview .metric")
    return tab


def shoot(browser, url, path, selector=None, **looks):
    """The window, or one element of the page whole."""
    tab = opened(browser, url, **looks)
    target = tab.locator(selector).first if selector else tab
    if selector:
        tab.evaluate(
            "document.querySelectorAll('#roofline > details, #calibration > details').forEach((d) => d.unfold())"
        )
        tab.evaluate("document.querySelector('.top').style.position = 'static'")  # not over the element
        if tab.locator("#traffic").count():  # simulated when it is seen, and moves what is below it
            tab.locator("#traffic").scroll_into_view_if_needed()
            tab.wait_for_selector("#traffic[aria-busy=false] svg.plot")
        tab.set_viewport_size({**looks.get("viewport", WIDE), "height": TALL})  # nothing is scrolled, nothing moves
        tab.wait_for_timeout(500)
    save(target, path)
    tab.close()


def choose_a_gpu(browser, url, folder):
    """Type the model and press Enter: one click."""
    tab = opened(browser, url + "#?at=largest&prompt=8192&output=1024&ttft=1000")
    box = tab.locator("#model-name")
    box.click()
    box.fill("qwen3-32b")
    box.press("Enter")
    tab.wait_for_selector("#claim .asked:has-text('qwen3-32b')", timeout=60_000)
    tab.wait_for_selector("#ranking[aria-busy=false] tbody tr", timeout=120_000)
    tab.wait_for_timeout(500)
    save(tab, folder / "task-choose.png")
    tab.close()


def my_quantised_config(browser, url, folder):
    """The box of models, `paste a config.json`, paste: three clicks."""
    tab = opened(browser, url + "#?at=largest")
    tab.locator("#model-name").click()
    tab.locator("#model-name-list [role=option]", has_text="paste a config.json").click()
    tab.locator("#pasted").fill((CONFIGS / "llama-3.1-70b-awq.json").read_text(encoding="utf-8"))
    tab.wait_for_selector("#answer[aria-busy=false] .command:has-text('my-model.json')", timeout=60_000)
    tab.wait_for_selector("#ranking[aria-busy=false] tbody tr", timeout=120_000)
    tab.wait_for_timeout(500)
    save(tab, folder / "task-config.png")
    tab.close()


def my_bench_file(browser, folder):
    """One command on what `vllm bench serve --save-result` wrote."""
    words = [sys.executable, "-m", "chip", "validate", *BENCH.split()]
    found = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "src"})
    said = html.escape(f"$ chip validate my-bench.json --gpu h200\n\n{found.stdout}")
    tab = browser.new_page(viewport={"width": 900, "height": 600})
    tab.set_content(f"<pre style='font: 14px/1.45 monospace; padding: 1em; margin: 0'>{said}</pre>")
    save(tab.locator("pre"), folder / "task-bench.png")
    tab.close()


def explorer(browser, url, folder):
    shoot(browser, url + "#?at=largest", folder / "explorer.png")
    shoot(browser, url + "#?at=largest", folder / "explorer-dark.png", theme="dark")
    shoot(browser, url + "#?at=largest", folder / "explorer-phone.png", viewport=PHONE)
    for part, selector in (("curves", "#curves-part"), ("traffic", "#traffic"), ("timeline", "#timeline")):
        shoot(browser, url + COMPARED, folder / f"explorer-{part}.png", selector)


def report(browser, index, folder):
    shoot(browser, index, folder / "report.png")
    shoot(browser, index, folder / "report-accuracy.png", "#accuracy")
    shoot(browser, index, folder / "report-roofline.png", "#roofline")
    shoot(browser, index, folder / "report-calibration.png", "#calibration > details > div > div")
    shoot(browser, index, folder / "report-dark.png", theme="dark")
    shoot(browser, index, folder / "report-phone.png", viewport=PHONE)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site, sync_playwright() as playwright:
        index = report_page.write(pathlib.Path(site), sources.gather(RESULTS, "An H200, measured")).as_uri()
        serving = server.Server(("127.0.0.1", 0), 60.0)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        sandbox = [] if os.name == "nt" or os.getuid() else ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        choose_a_gpu(browser, serving.url, folder)
        my_quantised_config(browser, serving.url, folder)
        my_bench_file(browser, folder)
        explorer(browser, serving.url, folder)
        report(browser, index, folder)
        browser.close()
        serving.shutdown()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img"))
