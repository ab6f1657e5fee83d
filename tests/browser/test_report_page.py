"""The report in a real browser, opened from disk: sections, sorting, filters, deep links, keyboard, themes, print."""

import json
import re

import pytest
from playwright.sync_api import expect
from reports import H200, samples, unfold, written

from chip.hardware import gpus

pytest_plugins = ["browsing"]
SECTIONS = ["overview", "accuracy", "kernels", "compared", "roofline", "calibration", "operators", "replay", "runs",
            "provenance"]  # fmt: skip


@pytest.fixture
def visit(visit):
    """Everything that is folded opened, of one section alone if it is named; with `folded=True` as it comes."""

    def go(url, section="", folded=False, **options):
        page = visit(url, **options)
        if not folded:
            unfold(page, section)
        return page

    return go


def cells(page, section, column):
    at = [h.get_attribute("data-column") for h in page.locator(f"#{section} th[data-column]").all()].index(column)
    return page.locator(f"#{section} tbody td:nth-child({at + 1})").all_text_contents()


def test_every_section_renders(look, full):
    page = look(full, ready=unfold)
    assert [s.get_attribute("id") for s in page.locator("main > section").all()] == SECTIONS
    assert page.locator("text=could not be drawn").count() == 0
    for name in SECTIONS:
        assert page.locator(f"#{name}").locator("table, svg, .metric, .empty").count() > 0, name


def test_a_section_without_data_says_what_makes_it(visit, tmp_path):
    page = visit(written(tmp_path, H200 / "calibration-1.json", H200 / "operators-1.jsonl"))
    for name in ("overview", "roofline", "calibration", "operators", "provenance"):
        assert page.locator(f"#{name} .empty").count() == 0, name
    makers = {"kernels": "chip kernels", "replay": "chip capture", "runs": "chip bench", "accuracy": "chip validate"}
    for name, command in makers.items():
        assert command in page.locator(f"#{name} .empty").inner_text()
    assert page.locator("#calibration svg.plot").count() == 8
    copied = gpus.read_profile(H200 / "calibration-1.json").ceilings["hbm_copy"].value
    peak = gpus.spec("h200").ceilings["hbm"].value
    assert f"{copied / 1e12:.3g} of {peak / 1e12:.3g} TB/s" in page.locator("#calibration").inner_text()


def test_every_section_has_its_data(look, full):
    page = look(full, ready=unfold)
    assert page.locator(".empty").count() == 0
    assert page.locator("#accuracy svg.plot:not(.strips)").count() == 1
    assert page.locator("#accuracy svg.strips").count() == 1
    assert page.locator("#overview svg.strips").count() == 1
    assert "From kernels to wall time" in page.locator("#replay").inner_text()
    assert "unclear" in page.locator("#compared").inner_text()
    assert "5_wgmma" in page.locator("#kernels").inner_text()


def test_a_run_that_failed_is_found_by_its_reason(visit, part):
    page = visit(part, "#runs")
    page.locator("#runs").get_by_role("button", name="All columns").click()
    page.locator("#runs").get_by_label("Filter runs").fill("out of memory")
    assert "failed" in page.locator("#runs tbody").inner_text()


def test_sorting(visit, part):
    page = visit(part, "#operators")
    heading = page.locator("#operators th[data-column=p50_us]")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    slow = cells(page, "operators", "p50_us")[0]
    assert slow.endswith(" ms")
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert cells(page, "operators", "p50_us")[0].endswith(("µs", "ns"))
    assert "sort=p50_us" in page.url


def test_filters_pages_and_deep_links(visit, part):
    page = visit(part, "#operators")
    operators = page.locator("#operators")
    operators.get_by_label("op of operators").select_option("attention")
    operators.get_by_label("context of operators").select_option("graph")
    assert all(c.startswith("attention ") for c in cells(page, "operators", "label"))
    assert set(cells(page, "operators", "context")) == {"graph"}
    operators.get_by_label("Filter operators").fill("q1 kv8192")
    assert all("q1" in c and "kv8192" in c for c in cells(page, "operators", "label"))
    shown, address = cells(page, "operators", "label"), page.url
    assert shown
    again = visit(address, "#operators")
    assert cells(again, "operators", "label") == shown
    operators.get_by_label("Filter operators").fill("nothing is called so")
    assert "No row is left" in operators.inner_text()
    third = visit(part + "#operators?op=linear&page=3&sort=-flops", "#operators")
    assert "51\u201375 of" in third.locator("#operators .pager").inner_text()
    third.locator("#operators").get_by_role("button", name="Next").click()
    assert "page=4" in third.url


def test_roofline_filter_toggle_and_keyboard(visit, full):
    page = visit(full, "#roofline")
    roofline = page.locator("#roofline")
    before = roofline.locator("path.dots").count()
    roofline.get_by_role("button", name="linear", exact=True).click()
    assert roofline.locator("path.dots").count() == before - 1
    assert "off=linear" in page.url
    roofline.get_by_role("button", name="fp8").click()
    assert "fp8 1.53" not in roofline.locator("svg.plot").text_content()
    files = [json.loads(f.read_text()) for f in (H200 / "kernels").glob("*.json") if f.stem != "plans"]
    ours = [r for held in files for r in held["data"]["rows"] if r["ours"]]
    assert roofline.locator("line.pair").count() == 5 + len(ours), "baseline and ours are joined"
    roofline.get_by_label("Filter the roofline").fill("attention")
    plot = roofline.locator("svg.plot")
    plot.focus()
    plot.press("ArrowRight")
    assert "attention " in roofline.locator(".tip strong").inner_text()
    assert "of its roof" in roofline.locator(".tip").inner_text()
    plot.press("Enter")
    assert "#operators?q=" in page.url
    assert "attention" in page.url


def test_hovering_tells_the_numbers(look, full):
    page = look(full, ready=unfold)
    plot = page.locator("#accuracy svg.plot:not(.strips)")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    for step in range(60):
        page.mouse.move(box["x"] + box["width"] * step / 60, box["y"] + box["height"] * (1 - step / 60))
        if page.locator("#accuracy .tip").is_visible():
            break
    assert "measured" in page.locator("#accuracy .tip").inner_text()


def test_themes_phone_and_print(visit, look, full, part):
    assert look(full, ready=unfold, width=360).evaluate("document.documentElement.scrollWidth") <= 360
    page = visit(part, theme="dark", width=360, height=740)

    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = ground()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.emulate_media(media="print")
    assert ground() == "rgb(255, 255, 255)", "paper is white"
    assert page.locator("#operators input").first.is_hidden()
    page.emulate_media(media="screen")
    page.get_by_role("button", name="Switch to the light theme").click()
    assert ground() != dark


def test_four_thousand_operators(visit, tmp_path):
    (tmp_path / "many.jsonl").write_text(samples.measurement_lines(4000))
    page = visit(written(tmp_path / "site", tmp_path / "many.jsonl"), "#operators")
    assert "of 4\u202f000" in page.locator("#operators .pager").inner_text()
    assert page.locator("*").count() < 3000, "rows that are not seen are not made"
    page.locator("#operators").get_by_label("Filter operators").fill("rms_norm")
    assert "4\u202f000 in all" in page.locator("#operators .pager").inner_text()


def test_numbers_of_any_size_are_drawn_or_told(visit, tmp_path):
    document = samples.validation(12)
    sizes = (5e-324, 1e308, 1e-300, 1e300, 0, -1)
    for p, size in zip(document["points"], sizes):
        p |= {"predicted": size, "measured": min(1 / size, 1e308) if size else 0, "error": size, "metric": "tpot"}
    (tmp_path / "v.json").write_text(json.dumps(document))
    profile = json.loads((H200 / "calibration-1.json").read_text())
    profile["data"]["curves"]["staircase"]["y"][:3] = [1e308, -1e308, 5e-324]
    (tmp_path / "p.json").write_text(json.dumps(profile))
    (tmp_path / "ops.jsonl").write_text(samples.measurement_lines(6, samples_ns=[10**30] * 3))
    page = visit(written(tmp_path / "site", tmp_path))
    assert page.locator("text=could not be drawn").count() == 0
    assert "1e+308 s" in page.locator("#accuracy").inner_text()
    assert page.locator("#calibration svg.plot").count() == 8


def test_deep_link_to_the_errors(visit, part):
    page = visit(part + "#errors?kind=peer", "#accuracy")
    rows = page.locator("#accuracy-table tbody tr").all_inner_texts()
    assert any("peer 1.0" in row for row in rows)
    everything = visit(part + "#errors", "#accuracy").locator("#accuracy-table tbody tr").count()
    assert 0 < len(rows) < everything


def test_hostile_names_stay_text(visit, tmp_path):
    evil = (
        "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u2028&lt;b&gt;"
    )
    samples.write_runs(
        tmp_path / "runs.json", samples.a_run(model=evil, engine=evil, device=evil), samples.a_run(model=evil)
    )
    lines = samples.measurement_lines(5, implementation=evil, status="ok")
    (tmp_path / "ops.jsonl").write_text(lines)
    page = visit(written(tmp_path / "site", tmp_path, title=evil))
    assert page.title().replace("\u2028", "").startswith("</script><script>")
    assert page.locator("main img").count() == 0
    assert evil in page.locator("#runs tbody").text_content()
    assert evil in page.locator("#operators tbody").text_content()
    plot = page.locator("#roofline svg.plot")
    plot.focus()
    plot.press("ArrowRight")
    assert page.locator("#roofline .tip img").count() == 0
    assert "owned" not in page.title().replace(evil, "")


def test_tables_are_folded_until_wanted_or_linked(visit, look, full, part):
    assert look(full).locator("table:visible").count() <= 2, "the page shows charts, not archives"
    page = visit(part, folded=True)
    page.locator("#runs summary").first.click()
    page.locator("#runs details details summary").first.click()
    page.locator("#runs th[data-column=model]").wait_for(state="visible")
    linked = visit(part + "#operators?op=linear", folded=True)
    linked.locator("#operators th[data-column=label]").wait_for(state="visible")


def test_the_first_screen_says_what_it_is_and_the_worst_miss(look, full):
    page = look(full, height=800)
    overview = page.locator("#overview").inner_text()
    assert "CHIP predicts how fast a language model runs on a GPU" in overview
    data = json.loads(page.locator("#data").text_content())["tables"]["predictions"]
    at = {name: i for i, name in enumerate(data["columns"])}
    own = [r[at["error_percent"]] for r in data["rows"] if r[at["who"]] == "chip"]
    worst = max((e for e in own if isinstance(e, (int, float))), key=abs)
    card = page.locator("#overview .metric", has_text="Worst miss of a prediction")
    assert float(card.locator(".value").inner_text().split()[0]) == pytest.approx(worst, rel=5e-3)
    box = card.bounding_box()
    assert box["y"] + box["height"] < 800


def test_every_class_and_every_other_predictor_has_its_spread_around_1(look, full):
    page = look(full)
    data = json.loads(page.locator("#data").text_content())["tables"]["spreads"]
    rows = [dict(zip(data["columns"], row)) for row in data["rows"]]
    own = [r for r in rows if r["who"] == "chip" and r["metric"] in ("tpot", "ttft")]
    assert len(own) > 3
    assert [r["bound"] for r in own] == sorted(r["bound"] for r in own), "GPU-bound classes before host-bound ones"
    first = page.locator("#overview svg.strips")
    assert first.locator("g.own").count() == len(own)
    assert "1 \u00d7" in first.text_content()
    shown = [r for r in rows if r["metric"] == "tpot"]
    assert page.locator("#accuracy svg.strips g").count() == len(shown)
    assert page.locator("#accuracy svg.strips g.peer").count() == sum(r["who"] != "chip" for r in shown) > 0


def test_of_many_dots_those_on_one_spot_are_drawn_once(visit, full):
    page = visit(full, "#roofline")
    said = page.locator("#roofline .figure p.span").first.inner_text()
    shown, of = (int(n.replace("\u202f", "")) for n in re.findall(r"[\d\u202f]+", said)[:2])
    assert 500 < shown < of


def test_throughput_compares_like_with_like(visit, full):
    page = visit(full, "#runs")
    runs = page.locator("#runs")
    chosen = runs.locator("select").first
    data = json.loads(page.locator("#data").text_content())["tables"]["runs"]
    at = {name: i for i, name in enumerate(data["columns"])}
    hidden = 0
    for label in [o.inner_text() for o in chosen.locator("option").all()[:3]]:
        chosen.select_option(label)
        chosen = runs.locator("select").first
        rates = {}
        for r in data["rows"]:
            asked = f"{r[at['batch']]} \u00d7 ({r[at['prompt']]} in, {r[at['output']]} out), {r[at['dtype']]}"
            if asked == label and r[at["bundled"]] and r[at["status"]] == "ok":
                name = f"{r[at['model']]}, {r[at['engine']]}"
                rates[name] = max(rates.get(name, 0), r[at["tokens_per_s"]])
        names = runs.locator(".bars").first.locator("> span:nth-child(3n + 1)").all_inner_texts()
        assert names == sorted(rates, key=rates.get, reverse=True)[:40]
        some = f": 40 of {len(rates)} shown, fastest first" if len(rates) > 40 else ""
        assert runs.locator("h3").first.inner_text() == f"Throughput at {label}{some}"
        hidden += len(rates) > 40
    assert hidden


def test_what_the_sign_of_an_error_means_holds_of_every_metric(look, full):
    page = look(full)
    for metric in page.locator("#accuracy select").first.locator("option").all_inner_texts():
        page.locator("#accuracy select").first.select_option(metric)
        assert "Left of 1 less was predicted than was measured" in page.locator("#accuracy").inner_text()


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_the_section_that_is_read_is_marked(visit, part, width):
    page = visit(part, width=width, folded=True)
    page.wait_for_selector(".top nav a[aria-current]:has-text('Overview')")
    page.locator(".top nav a:has-text('Replay')").click()
    page.wait_for_selector(".top nav a[aria-current]:has-text('Replay')")
    page.locator(".top nav a[aria-current]").wait_for(state="visible")
    page.locator("#replay svg, #replay .bars, #replay .empty").first.wait_for(state="visible")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_each_stage_buys_is_a_chart(look, full):
    page = look(full)
    stages = page.locator("#stages")
    data = json.loads(page.locator("#data").text_content())["tables"]["accuracy"]
    at = {name: i for i, name in enumerate(data["columns"])}
    chosen = stages.locator("select").input_value()
    rows = [r for r in data["rows"] if r[at["kind"]] == "stage" and r[at["name"]].endswith(f": {chosen}")]
    assert len(rows) > 2
    expect(stages.locator(".bars .num")).to_have_count(len(rows))
    first = stages.locator(".bars .num").first.inner_text()
    assert float(first.split()[0]) == pytest.approx(rows[0][at["median_percent"]], rel=5e-3)


def test_a_table_is_saved_as_it_is_filtered(visit, part):
    page = visit(part + "#runs?engine=vllm", folded=True)
    page.locator("#runs tbody tr").first.wait_for()
    with page.expect_download() as saved:
        page.locator("#runs").get_by_role("button", name="CSV of these rows").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("model,bundled,gpu,engine")
    assert len(lines) > 25
    assert all(",vllm," in line for line in lines[1:])


def test_a_section_claims_what_its_cards_say(look, full):
    page = look(full, ready=unfold)
    data = json.loads(page.locator("#data").text_content())["tables"]["headlines"]
    cards = [dict(zip(data["columns"], row)) for row in data["rows"]]
    for card in cards:
        claim = page.locator(f"#{card['section']} > .claim").inner_text()
        assert f"{card['name']}: " in claim
        assert f"({card['detail']})" in claim
    assert len({card["section"] for card in cards}) >= 5
    for shown in page.locator("#overview a.metric").all():
        name, value = (shown.locator(part).inner_text() for part in ("h3", ".value"))
        assert f"{name}: {value}" in page.locator("#accuracy > .claim").inner_text()
