"""axe-core finds no violation on either page, at three widths and in both themes. test_access.py has a check
of our own, which also looks at what axe leaves to people."""

import pytest
from browsing import cannot_run
from test_access import COMPARED
from test_explorer import QUICK, settled
from test_explorer_page import WIDTHS

pytest_plugins = ["browsing"]
LOOKS = [*(("light", width) for width in WIDTHS), ("dark", WIDTHS[0])]  # a width changes no colour


def violations(page):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        cannot_run("axe-playwright-python is not installed (it is in the dev extra)")
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {n['html'][:160]}" for v in found for n in v["nodes"]]


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_explorer(visit, explorer, theme, width):
    page = visit(explorer + COMPARED, color_scheme=theme, viewport={"width": width, "height": 900})
    settled(page)
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr")
    page.wait_for_selector("#timeline-view svg")
    page.wait_for_selector("#curves svg.plot")
    page.locator("#traffic-view").scroll_into_view_if_needed()
    page.wait_for_selector("#traffic[aria-busy=false] svg.plot")
    if width < 800:
        page.get_by_role("button", name="Change the question").click()
    assert violations(page) == []


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_report(visit, full, theme, width):
    page = visit(full, color_scheme=theme, viewport={"width": width, "height": 900})
    if width < 800:  # where most has to scroll; thousands of rows take axe half a minute
        page.evaluate("document.querySelectorAll('details.raw').forEach(d => d.unfold())")
    assert violations(page) == []


def test_a_violation_is_found(visit, explorer):
    page = visit(explorer + QUICK)
    settled(page)
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert [v.split(":")[0] for v in violations(page)] == ["button-name"]
