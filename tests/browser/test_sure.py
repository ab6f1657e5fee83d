"""How sure an answer is: what the nearest validated runs erred by, beside the numbers and on the curves."""

import pytest
from test_explorer import DEEP, QUICK, answer, commands, settled  # noqa: F401
from test_explorer_page import WIDTHS

pytest_plugins = ["browsing"]
ERRORS = ("ttft_error", "tpot_error", "e2e_error")


def held(locator):
    return [float(e.get_attribute("data-value")) for e in locator.all()]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_nearest_runs_and_their_errors_are_those_of_the_command_line(visit, explorer, answer, width):  # noqa: F811
    page = visit(explorer + DEEP, viewport={"width": width, "height": 900})
    settled(page)
    found = [answer(c)["nearest_validated"] for c in commands(page)]
    assert len(found) == 2
    for metric in ("ttft", "tpot", "e2e"):
        shown = held(page.locator(f"#metric-{metric}_ms .sure"))
        assert shown == [runs[0][f"{metric}_error"] for runs in found if f"{metric}_error" in runs[0]]
    rows = page.locator(".how-sure tbody tr")
    runs = [run for one in found for run in one]
    assert rows.count() == len(runs) == 6
    for row, run in zip(rows.all(), runs, strict=True):
        assert held(row.locator("td[data-value]")) == [run[key] for key in ERRORS if key in run]
        assert run["model"] in row.inner_text()
        assert run["source"] in row.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
