"""A real browser: Debian's Chromium (or Playwright's own), headless. Where there is none these tests cannot run, and
the last lines of the run say so; with CHIP_BROWSER=required, as in CI, that is a failure."""

import os
import shutil
import threading

import pytest
from reports import H200, samples, written

from chip import hardware
from chip.serve import server

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
REQUIRED = os.environ.get("CHIP_BROWSER") == "required"
missing = []


def cannot_run(why):
    if REQUIRED:
        pytest.fail(f"browser tests are required, but {why}")
    missing[:] = [why]
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        cannot_run("playwright is not installed (it is in the dev extra)")
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        sandbox = [] if os.name == "nt" or os.getuid() else ["--no-sandbox"]  # root has no sandbox to go into
        try:
            chromium = playwright.chromium.launch(executable_path=found, args=sandbox)
        except Error as e:
            cannot_run(f"no Chromium starts: {str(e).splitlines()[0][:120]}")
        yield chromium
        chromium.close()


REFUSED = "Failed to load resource: the server responded with a status of 422"  # the browser's word for a refusal


class Visit:
    """A page, with what went wrong on it and what it asked for."""

    def __init__(self, page):
        self.page, self.problems, self.requests = page, [], []
        page.on("console", self.heard)
        page.on("pageerror", lambda e: self.problems.append(str(e)))
        page.on("request", lambda r: self.requests.append(r.url))

    def heard(self, message):
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            self.problems.append(message.text)


@pytest.fixture
def visit(browser):
    """`visit(url, **options of the page)`; afterwards, nothing may have gone wrong and nothing may have been asked for
    elsewhere."""
    made = []

    def go(url, **options):
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        made.append((Visit(page), url))
        page.goto(url)
        return page

    yield go
    for one, url in made:
        one.page.close()
        assert not one.problems
        home = url.split("#")[0].rpartition("/")[0] + "/"
        assert all(r.startswith(("data:", "blob:", home)) for r in one.requests), one.requests


@pytest.fixture(scope="session")
def explorer():
    with server.Server(("127.0.0.1", 0), 60.0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.url
        made.shutdown()


@pytest.fixture(scope="session")
def full(tmp_path_factory):
    """The report of all bundled results and of made-up ones of every kind."""
    folder = tmp_path_factory.mktemp("full")
    return written(
        folder / "site", H200, hardware.PROFILES, hardware.POINTS / "h200", samples.write_all(folder / "results")
    )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if missing:
        terminalreporter.section("browser tests did NOT run", sep="!")
        terminalreporter.line(f"{missing[0]}; see `make browser`")
