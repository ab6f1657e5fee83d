"""axe-core finds no violation on either page, at three widths and in both themes. test_access.py has a check
of our own, which also looks at what axe leaves to people."""

import pytest
from browsing import cannot_run
from reports import unfold
from test_access import COMPARED, drawn
from test_explorer_page import WIDTHS

pytest_plugins = ["browsing"]
# Contrast takes axe most of its time. No width changes a colour, and a theme changes nothing else
COLOURS = ["color-contrast", "link-in-text-block"]
LIKE_THE_WIDEST = {"rules": {rule: {"enabled": False} for rule in COLOURS}}
ALIKE = "tbody tr:nth-child(n+4), svg circle:nth-of-type(n+20)"  # as those before; test_access.py looks at all
LOOKS = [("light", 1440, {}), ("dark", 1440, {"runOnly": COLOURS}), ("light", 1024, LIKE_THE_WIDEST)]
assert sorted(WIDTHS) == [390, 1024, 1440]


def violations(page, **options):
    try:
        from axe_playwright_python.base import AXE_SCRIPT
    except ImportError:
        cannot_run("axe-playwright-python is not installed (it is in the dev extra)")
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"() => {{ {AXE_SCRIPT}\n}}")  # as a value, all of axe would be sent back
    asked = {"resultTypes": ["violations"], **options}
    found = page.evaluate("async (options) => (await axe.run(document, options)).violations", asked)
    return [f"{v['id']}: {n['html'][:160]}" for v in found for n in v["nodes"]]


def few(page):
    page.evaluate("(alike) => document.querySelectorAll(alike).forEach((e) => e.remove())", ALIKE)


def few_drawn(page):
    drawn(page)
    few(page)


def few_unfolded(page):
    """A report with something in every section and all tables open, where most has to scroll."""
    assert page.locator(".empty").count() == 0
    unfold(page)
    few(page)


@pytest.mark.parametrize(("theme", "width", "rules"), LOOKS)
def test_explorer(look, explorer, theme, width, rules):
    assert violations(look(explorer + COMPARED, width, theme, ready=few_drawn), **rules) == []


def test_explorer_on_a_phone(look, explorer):
    page = look(explorer + COMPARED, 390, ready=few_drawn)
    page.get_by_role("button", name="Change the question").click()
    assert violations(page) == []
    page.keyboard.press("Escape")


@pytest.mark.parametrize(("theme", "width", "rules"), [*LOOKS, ("light", 390, {})])
def test_report(look, part, theme, width, rules):
    assert violations(look(part, width, theme, ready=few_unfolded), **rules) == []


def test_the_whole_report(look, full):
    """All rows of all results, whose contrast test_access.py checks."""
    assert violations(look(full, 390, ready=unfold), **LIKE_THE_WIDEST) == []


@pytest.mark.parametrize(
    ("wrong", "rules", "name"),
    [
        ("<button></button>", {}, "button-name"),
        ("<button></button>", LIKE_THE_WIDEST, "button-name"),
        ("<p style='color: #ccc; background: #fff'>faint</p>", {"runOnly": COLOURS}, "color-contrast"),
    ],
)
def test_a_violation_is_found(visit, tmp_path, wrong, rules, name):
    (tmp_path / "wrong.html").write_text(f"<!doctype html><html lang=en><title>t</title><main><h1>t</h1>{wrong}</main>")
    assert [v.split(":")[0] for v in violations(visit((tmp_path / "wrong.html").as_uri()), **rules)] == [name]
