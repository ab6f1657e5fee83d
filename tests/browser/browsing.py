"""A real browser: Debian's Chromium (or Playwright's own), headless. Where there is none these tests cannot run, and
the last lines of the run say so; with CHIP_BROWSER=required, as in CI, that is a failure."""

import os
import shutil
import threading

import pytest
from reports import H200, samples, written

from chip.show.report import page
from chip.show.serve import server

BUSY_MS = 30_000  # what a page may take to change while others use the machine

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
REQUIRED = os.environ.get("CHIP_BROWSER") == "required"
# A page goes on in the process it has: a new one for each place it goes to was a third of the browser's CPU time
ONE_PROCESS = ["--disable-site-isolation-trials", "--process-per-site", "--renderer-process-limit=1"]
missing = []


def cannot_run(why):
    if REQUIRED:
        pytest.fail(f"browser tests are required, but {why}")
    missing[:] = [why]
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser():
    try:
        from playwright.sync_api import Error, expect, sync_playwright
    except ImportError:
        cannot_run("playwright is not installed (it is in the dev extra)")
    expect.set_options(timeout=BUSY_MS)
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        sandbox = [] if os.name == "nt" or os.getuid() else ["--no-sandbox"]  # root has no sandbox to go into
        try:
            chromium = playwright.chromium.launch(executable_path=found, args=[*sandbox, *ONE_PROCESS])
        except Error as e:
            cannot_run(f"no Chromium starts: {str(e).splitlines()[0][:120]}")
        yield chromium
        chromium.close()


REFUSED = "Failed to load resource: the server responded with a status of 422"  # the browser's word for a refusal


class Visit:
    """What went wrong on a page and what it asked for, since a test came to it."""

    def __init__(self, page):
        self.page = page
        self.come("about:blank")
        page.on("console", self.heard)
        page.on("pageerror", lambda e: self.problems.append(str(e)))
        page.on("request", lambda r: self.requests.append(r.url))

    def come(self, url):
        self.problems, self.requests, self.home = [], [], url.split("#")[0].rpartition("/")[0] + "/"
        self.page.goto(url)
        if "index.html" in url:  # a report, which unpacks its data
            self.page.wait_for_selector("html[data-ready]", state="attached")

    def heard(self, message):
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            self.problems.append(message.text)

    def check(self):
        assert not self.problems
        assert all(r.startswith(("data:", "blob:", self.home)) for r in self.requests), self.requests

    def leave(self):
        """As new for the next test: nothing is kept of the place, or of what a test changed."""
        self.page.unroute_all()
        self.page.context.unroute_all()
        self.page.evaluate("localStorage.clear(), sessionStorage.clear()")
        self.page.goto("about:blank")


@pytest.fixture(scope="session")
def context(browser):
    """All pages share what the browser keeps of a site: it has read and compiled the scripts then. A test that changes
    something there (`localStorage`, routes) visits, and it is undone."""
    return browser.new_context()


@pytest.fixture(scope="session")
def tabs():
    """That no test looks at."""
    return []


def turn(page, width, height, theme):
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(media="screen", color_scheme=theme)


@pytest.fixture
def visit(context, tabs):
    """`visit(url, width, theme, height)`; afterwards, nothing may have gone wrong and nothing may have been asked of
    another site."""
    made = []

    def go(url, width=1280, theme="light", height=900):
        one = tabs.pop() if tabs else Visit(context.new_page())
        made.append(one)
        turn(one.page, width, height, theme)
        one.come(url)
        return one.page

    yield go
    for one in made:
        one.check()
        if not one.page.is_closed():
            one.leave()
            tabs.append(one)


@pytest.fixture(scope="session")
def looks():
    """Pages that are open for tests that change nothing."""
    return {}


@pytest.fixture
def look(browser, looks):
    """As `visit`, but all tests that ask for an address get one page of it, which they leave as it is. `ready` is
    called with it when it is new."""
    used = []

    def at(url, width=1280, theme="light", height=900, ready=None):
        key = url, ready
        if new := key not in looks:
            looks[key] = Visit(browser.new_page())  # with memory of its own: it is large, and stays
        used.append(looks[key])
        turn(looks[key].page, width, height, theme)
        if new:
            looks[key].come(url)
            if ready:
                ready(looks[key].page)
        return looks[key].page

    yield at
    for one in used:
        one.check()


@pytest.fixture(scope="session")
def explorer():
    with server.Server(("127.0.0.1", 0), 60.0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.url
        made.shutdown()


@pytest.fixture(scope="session")
def full(everything, tmp_path_factory):
    """The report of all bundled results and of made-up ones of every kind."""
    return page.write(tmp_path_factory.mktemp("full"), everything).as_uri()


@pytest.fixture(scope="session")
def part(tmp_path_factory):
    """A report of one file of most kinds, for tests that change what is shown: a browser has it drawn in no time."""
    folder = tmp_path_factory.mktemp("part")
    files = (H200 / name for name in ("calibration-1.json", "operators-contexts.jsonl", "kernels", "runs/vllm-1.json"))
    return written(folder / "site", *files, samples.write_all(folder / "results"))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if missing:
        terminalreporter.section("browser tests did NOT run", sep="!")
        terminalreporter.line(f"{missing[0]}; see `make browser`")
