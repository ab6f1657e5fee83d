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
ALIKE = {"exclude": [["tbody tr:nth-child(n+4)"]]}  # rows after the third; test_access.py looks at all
LOOKS = [("light", 1440, {}), ("dark", 1440, {"runOnly": COLOURS}), ("light", 1024, LIKE_THE_WIDEST)]
assert sorted(WIDTHS) == [390, 1024, 1440]


def violations(page, **options):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        cannot_run("axe-playwright-python is not installed (it is in the dev extra)")
    found = Axe().run(page, ALIKE, options).response["violations"]
    return [f"{v['id']}: {n['html'][:160]}" for v in found for n in v["nodes"]]


@pytest.mark.parametrize(("theme", "width", "rules"), LOOKS)
def test_explorer(look, explorer, theme, width, rules):
    assert violations(look(explorer + COMPARED, width, theme, ready=drawn), **rules) == []


def test_explorer_on_a_phone(look, explorer):
    page = look(explorer + COMPARED, 390, ready=drawn)
    page.get_by_role("button", name="Change the question").click()
    assert violations(page) == []
    page.keyboard.press("Escape")


@pytest.mark.parametrize(("theme", "width", "rules"), LOOKS)
def test_report(look, full, theme, width, rules):
    assert violations(look(full, width, theme), **rules) == []


def test_report_on_a_phone(look, part):
    """With all tables open, where most has to scroll."""
    assert violations(look(part, 390, ready=unfold)) == []


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
