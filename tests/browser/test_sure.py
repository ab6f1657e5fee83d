"""How sure an answer is: what the nearest validated runs erred by, beside the numbers and on the curves."""

import csv

import pytest
from playwright.sync_api import expect
from test_explorer import DEEP, QUICK, answer, commands, settled  # noqa: F401
from test_explorer_page import WIDTHS

pytest_plugins = ["browsing"]
# What a plot tells at each press of a key; a hand at the keyboard is played below, where a run is loaded
WALK = """(plot, times) => Array.from({length: times}, () => {
  plot.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true, cancelable: true}));
  return plot.nextElementSibling.innerText;
})"""
ERRORS = ("ttft_error", "tpot_error", "e2e_error")


def held(locator):
    return [float(e.get_attribute("data-value")) for e in locator.all()]


def test_the_nearest_runs_and_their_errors_are_those_of_the_command_line(look, explorer, answer):  # noqa: F811
    page = look(explorer + DEEP, ready=settled)
    found = [answer(c)["nearest_validated"] for c in commands(page)]
    assert len(found) == 2
    for metric in ("ttft", "tpot", "e2e"):
        shown = held(page.locator(f"#metric-{metric}_ms .sure"))
        assert shown == [runs[0][f"{metric}_error"] for runs in found if runs and f"{metric}_error" in runs[0]]
    rows = page.locator(".how-sure tbody tr")
    runs = [run for one in found for run in one]
    assert rows.count() == len(runs)
    missing = page.locator(".how-sure p.note")
    assert missing.count() == sum(not one for one in found)
    for row, run in zip(rows.all(), runs, strict=True):
        assert held(row.locator("td[data-value]")) == [run[key] for key in ERRORS if key in run]
        assert run["model"] in row.inner_text()
        assert run["source"] in row.inner_text()
    for width in WIDTHS:
        assert look(explorer + DEEP, width, ready=settled).evaluate("document.documentElement.scrollWidth") <= width


def measured_of(page, explorer, prompt):
    asked = {"model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm", "prompt": prompt, "output": 128, "batch": [1]}
    found = page.request.post(f"{explorer}api/sweep", data=asked)
    return found.json()["measured"]


def curves(page):
    page.wait_for_selector("#curves svg.plot")


def told_of_runs(page, title, runs):
    """What a plot tells of the runs on it, from left to right."""
    plot = page.locator(f"#curves svg.plot[aria-label*='{title}']")
    plot.focus()
    told = plot.evaluate(WALK, 11 + runs)
    return [t for t in told if "measured" in t]


def test_a_click_on_a_measured_run_loads_it(visit, explorer):
    page = visit(explorer + QUICK + "&prompt=512")
    run = max(measured_of(page, explorer, 512), key=lambda r: r["batch"])
    plot = page.locator("#curves svg.plot[aria-label*='Tokens/s of a user']")
    plot.focus()
    for _ in range(12 + 2):
        plot.press("ArrowRight")
        text = plot.locator("xpath=following-sibling::*").inner_text()
        if "measured" in text and f"batch\n{run['batch']}\n" in text:
            break
    plot.press("Enter")
    expect(page.locator("#batch")).to_have_value(str(run["batch"]))
    expect(page.locator("#output")).to_have_value(str(run["output"]))
    assert f"output={run['output']}" in page.url


@pytest.mark.parametrize("width", WIDTHS)
def test_measured_runs_lie_on_the_curve(look, explorer, width):
    page = look(explorer + QUICK + "&prompt=512", width, ready=curves)
    runs = measured_of(page, explorer, 512)
    assert {r["batch"] for r in runs} >= {8, 32}
    for title, x in (("TPOT", "batch"), ("TTFT", "batch"), ("Tokens/s of a user", "tokens_per_s_per_gpu")):
        told = told_of_runs(page, title, len(runs))
        for run, text in zip(sorted(runs, key=lambda r: r[x]), told, strict=True):
            assert f"{run['tpot_ms']:.4g} ms" in text
            assert f"{abs(100 * run['tpot_error']):.1f} %" in text
            assert f"{run['output']} tokens" in text
            assert f"tok/s per GPU, with 128 out\n{run['tokens_per_s_per_gpu']:.4g}" in text.replace("\u202f", "")
    expect(page.locator("#curves .legend")).to_contain_text("measured")


def test_where_nothing_was_measured_no_run_is_drawn(visit, explorer):
    page = visit(explorer + QUICK + "&prompt=515")
    curves(page)
    assert measured_of(page, explorer, 515) == []
    expect(page.locator("#curves .legend")).not_to_contain_text("measured")


def test_the_curves_as_csv(visit, explorer):
    page = visit(explorer + QUICK)
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV of the curves").click()
    with saved.value.path().open(encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    runs = measured_of(page, explorer, 1024)
    assert [float(r["tpot_ms"]) for r in rows if r["kind"] == "measured"] == [r["tpot_ms"] for r in runs]
    assert [r["output"] for r in rows if r["kind"] == "measured"] == [str(r["output"]) for r in runs]
    predicted = [r for r in rows if r["kind"] == "predicted"]
    assert [int(r["batch"]) for r in predicted] == [2**n for n in range(11)]
    eight = next(r for r in predicted if r["batch"] == "8")
    settled(page)
    assert [float(eight["tpot_ms"])] == held(page.locator("#metric-tpot_ms .value"))
    assert float(eight["tpot_low_ms"]) < float(eight["tpot_ms"]) < float(eight["tpot_high_ms"])


def test_the_nearest_run_of_another_gpu_says_so_and_many_notes_are_folded(visit, explorer):
    page = visit(explorer + QUICK + "&gpu=b200&batch=1&beside=h200,mi325x,l40s,b200~1~fp8")
    settled(page)
    shown = page.locator("#metric-e2e_ms .sure").all_inner_texts()
    assert len(shown) == 2, "of a B200 or an L40S no run was validated"
    assert shown[0].startswith("nearest run ")
    assert "(" not in shown[0]
    assert shown[1].startswith("nearest run (mi300x) ")
    none = page.locator(".how-sure p.note").all_inner_texts()
    assert none == [
        f"{side} No run of vllm in {dtype} on one GPU of this kind was held against a prediction."
        for side, dtype in (("A", "bf16"), ("D", "bf16"), ("E", "fp8"))
    ]
    badges = page.locator("#answer .badge").all_inner_texts()
    assert badges == ["imported", "measured", "datasheet", "imported", "datasheet"], "of the answers, not of the GPUs"
    notes = page.locator("#answer details.notes")
    assert notes.locator("p.note").count() > 2
    assert not notes.locator("p.note").first.is_visible()
    notes.locator("summary").click()
    assert notes.locator("p.note").first.is_visible()
