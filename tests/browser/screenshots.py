"""Take the pictures of docs/gallery.md: `python tests/browser/screenshots.py docs/img`. Needs playwright and Chromium.

The explorer is asked for an H200 beside an H100; the report is of the results in this repository.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import threading

from playwright.sync_api import sync_playwright

from chip.show.report import page as report_page
from chip.show.report import sources
from chip.show.serve import server

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = [ROOT / "results" / "h200", ROOT / "src" / "chip" / "data" / "profiles"]
EXPLORER = "#?which=tables&model=llama-3.1-8b&gpu=h200&beside=h100&engine=vllm&batch=8&prompt=1024&output=128"
WIDE = {"width": 1280, "height": 900}
TALL = 2600
PHONE = {"width": 390, "height": 844}


def shoot(browser, url, path, selector=None, viewport=WIDE, theme="light"):
    """The window, or one element of the page whole."""
    tab = browser.new_page(viewport=viewport, color_scheme=theme)
    tab.goto(url)
    tab.wait_for_selector("#answer[aria-busy=false] .metric, #overview .metric")
    tab.wait_for_selector("#ranking[aria-busy=false] tbody tr, #overview .metric", timeout=120_000)
    tab.wait_for_selector("#timeline-view svg, #overview .metric")
    target = tab.locator(selector).first if selector else tab
    if selector:
        tab.evaluate("document.querySelector('.top').style.position = 'static'")  # not over the element
        if tab.locator("#traffic").count():  # simulated when it is seen, and moves what is below it
            tab.locator("#traffic").scroll_into_view_if_needed()
            tab.wait_for_selector("#traffic[aria-busy=false] svg.plot")
        tab.set_viewport_size({**viewport, "height": TALL})  # nothing is scrolled, nothing moves
        tab.wait_for_timeout(300)
    target.screenshot(path=path)
    tab.close()
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as site, sync_playwright() as playwright:
        index = report_page.write(pathlib.Path(site), sources.gather(RESULTS, "An H200, measured")).as_uri()
        serving = server.Server(("127.0.0.1", 0), 10.0)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        sandbox = [] if os.name == "nt" or os.getuid() else ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        asked = serving.url + EXPLORER
        shoot(browser, asked, folder / "explorer.png", viewport={"width": 1280, "height": 1180})
        shoot(browser, asked, folder / "explorer-dark.png", theme="dark")
        shoot(browser, asked, folder / "explorer-phone.png", viewport=PHONE)
        shoot(browser, asked, folder / "explorer-curves.png", "#curves-part")
        shoot(browser, asked, folder / "explorer-traffic.png", "#traffic")
        shoot(browser, asked, folder / "explorer-timeline.png", "#timeline")
        shoot(browser, index, folder / "report.png")
        shoot(browser, index, folder / "report-accuracy.png", "#accuracy")
        shoot(browser, index, folder / "report-roofline.png", "#roofline")
        shoot(browser, index, folder / "report-calibration.png", "#calibration > div")
        shoot(browser, index, folder / "report-dark.png", "#roofline", theme="dark")
        shoot(browser, index, folder / "report-phone.png", viewport=PHONE)
        browser.close()
        serving.shutdown()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img"))
