"""What the explorer once got wrong or did not have: links, focus, wrong input, comparing, ranking, curves, timeline."""

import json
import re
import shlex

import price_cases
import pytest
from playwright.sync_api import expect
from test_explorer import COST, DEEP, QUICK, commands, settled, values

from chip.decoders.library import CONFIGS
from chip.show import cli

pytest_plugins = ["browsing"]
WIDTHS = [1440, 1024, 390]
LAYOUTS = [1440, 390]  # the question beside the answer; the question as a sheet


def fits(page, width):
    """Nothing scrolls sideways, at any width of this layout."""
    for same in [w for w in WIDTHS if w == width or (w > 800 and width > 800)]:
        page.set_viewport_size({"width": same, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= same
    page.set_viewport_size({"width": width, "height": 900})


def ranked(page):
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr", timeout=60_000)


def test_the_first_answers_come_with_the_page(context, explorer):
    asked = []
    page = context.new_page()
    page.on("request", lambda r: asked.append(r.url.removeprefix(explorer)))
    page.route("**/api/**", lambda route: route.abort())
    page.goto(explorer)
    settled(page)
    assert page.locator("#metric-ttft_ms .value").get_attribute("data-value")
    assert page.locator("#operator-us").get_attribute("data-value")
    assert not {"api/compare", "api/estimate"} & set(asked), "nothing had to be asked for what is shown first"
    page.close()


def test_the_ranking_is_by_the_rate_that_keeps_the_limits_or_by_a_burst(context, explorer, capsys):
    """Of one GPU: what is shown is what `chip plan` answers to the command on the page."""
    page, paths = context.new_page(), []

    def of_one(route):
        paths.append(route.request.url.removeprefix(explorer))
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "gpu": ["h200"], "tp": [1]}))

    for path in ("plan", "rank"):
        page.route(f"**/api/{path}", of_one)
    page.goto(
        explorer + "#?which=tables&model=llama-3.2-1b&precisions=auto&prompt=512&ttft=300&tpot=20&by=throughput&prices="
    )
    ranked(page)
    assert set(paths) == {"api/plan"}
    words = shlex.split(page.locator("#ranked .command, #ranked code").first.inner_text())
    words[words.index("--tp") + 1] = "1"
    assert cli.main([*words[1:], "--json"]) == 0
    (best,) = json.loads(capsys.readouterr().out)["choices"]
    line = page.locator("#ranked tbody tr").first
    assert float(line.get_attribute("data-value")) == best["tokens_per_s_per_gpu"]
    rate = float(re.search(r"([\d.]+)\u00a0req/s", line.inner_text())[1])
    assert rate == pytest.approx(best["max_rate_per_s"], rel=0.01)
    page.locator("#rank-at").select_option("largest")
    page.wait_for_selector("#ranked tbody tr:has-text('batch')")
    assert paths[-1] == "api/rank"
    page.close()


def test_memory_that_fits_the_card_but_not_its_share(visit, explorer):
    page = visit(explorer + QUICK + "&gpu=h100&batch=512&prompt=800")
    settled(page)
    found = page.evaluate("""async () => (await fetch('/api/predict', {method: 'POST',
        headers: {'Content-Type': 'application/json'},
        body: JSON.stringify({model: 'llama-3.1-8b', gpu: 'h100', batch: 512, prompt: 800, output: 128})})).json()""")
    memory = found["memory"]
    assert memory["usable_bytes"] < memory["capacity_bytes"]
    label = page.locator("#answer .stack").get_attribute("aria-label")
    assert f"{memory['usable_bytes'] / 2**30:.4g} GiB" in label, "the bar says the share that the engine may use"
    left = page.locator("#answer .stack .limit.usable").evaluate("e => parseFloat(e.style.left)")
    whole = max(memory["capacity_bytes"], memory["total_bytes"])
    assert left == pytest.approx(100 * memory["usable_bytes"] / whole, abs=0.1)


def test_a_part_of_the_page_keeps_the_address(visit, explorer):
    page = visit(explorer + DEEP)
    settled(page)
    ranked(page)
    before = page.url
    page.get_by_role("link", name="Operator").click()
    expect(page.locator("#operator-title")).to_be_in_viewport()
    assert page.url == before


def test_a_link_that_leaves_keys_out_means_the_start(visit, explorer):
    page = visit(explorer + DEEP)
    settled(page)
    page.evaluate("location.hash = '#?which=tables&model=gpt2'")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('gpt2')")
    (command,) = commands(page)
    assert "--gpu h200 --engine vllm --batch 8 --prompt 1024" in command, "nothing of the question before is left"


def test_choosing_keeps_the_focus(visit, explorer):
    page = visit(explorer + QUICK)
    settled(page)
    page.locator("#gpu").focus()
    page.locator("#gpu").select_option("h100")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--gpu h100')")
    assert page.evaluate("document.activeElement.id") == "gpu"


def test_a_number_out_of_range_says_so(visit, explorer):
    page = visit(explorer + QUICK)
    settled(page)
    before = commands(page)
    page.locator("#batch").fill("0")
    wrong = page.locator("#batch-wrong")
    wrong.wait_for(state="visible")
    assert wrong.inner_text().startswith("a whole number from 1 to 1\u202f000\u202f000")
    assert page.locator("#batch").get_attribute("aria-invalid") == "true"
    assert commands(page) == before
    page.locator("#batch").fill("3")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--batch 3 ')")
    wrong.wait_for(state="hidden")


def test_a_server_that_is_gone_is_named_and_can_be_asked_again(context, explorer):
    page = context.new_page()
    page.goto(explorer + QUICK)
    settled(page)
    page.route("**/api/compare", lambda route: route.abort())
    page.locator("#batch").fill("5")
    page.wait_for_selector("#answer [role=alert]")
    said = page.locator("#answer [role=alert]").inner_text()
    assert said == "The server does not answer. Is `chip serve` still running?"
    page.unroute("**/api/compare")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--batch 5 ')")
    page.close()


def test_roofs_say_what_they_rest_on(visit, explorer):
    page = visit(explorer + QUICK + "&beside=a10")
    settled(page)
    measured, datasheet = page.locator("#answer .basis").all()
    assert measured.inner_text().startswith("Full roofs: ")
    assert datasheet.inner_text().endswith("never measured")
    dashed = "svg => [...svg.querySelectorAll('path.line')].map(p => p.getAttribute('stroke-dasharray'))"
    first, second = (p.evaluate(dashed) for p in page.locator("#answer svg.plot").all()[:2])
    assert not any(first)
    assert all(second)


def test_no_two_bounds_are_told_apart_by_colour_alone(visit, explorer):
    page = visit(explorer + QUICK)
    settled(page)
    looks = page.evaluate("""() => [...document.querySelectorAll('#answer .bars .bar')].map(b => b.className)""")
    texts = page.locator("#answer .bars .num").all_inner_texts()
    told = {(look.split()[1], text.split(" · ")[2]) for look, text in zip(looks, texts, strict=True)}
    assert len(told) == len({bound for _, bound in told}) == len({pattern for pattern, _ in told}) >= 3


def test_several_configurations_stand_in_aligned_rows(visit, explorer):
    hash_ = QUICK + "&beside=h100,a100~2~fp16,l40s"
    page = visit(explorer + hash_)
    settled(page)
    assert len(commands(page)) == 4
    assert "--gpu a100 --engine vllm" in commands(page)[2]
    assert "--dtype fp16 --tp 2" in commands(page)[2]
    heads = page.locator("#answer .aligned").first.locator("thead th").all_inner_texts()
    assert [h.split()[0] for h in heads[1:]] == ["A", "B", "C", "D"]
    rows = page.locator("#answer .aligned").first.locator("tbody tr")
    assert all(r.locator("td").count() == 4 for r in rows.all())
    rates = values(page, "tokens_per_s")
    assert f"{rates[1] / rates[0]:.3g} \u00d7 A" in page.locator("#metric-tokens_per_s").inner_text()
    page.get_by_role("button", name="Remove h100, auto").click()
    expect(page.locator("#answer .command")).to_have_count(3)
    assert "h100" not in page.url


@pytest.mark.parametrize("width", LAYOUTS)
def test_the_ranking_answers_first_and_loads_a_row(visit, explorer, width):
    page = visit(explorer + QUICK + "&tpot=20", width=width)
    ranked(page)
    rows = page.locator("#ranked > .scroll tbody tr")
    sure = [float(r.get_attribute("data-sure")) for r in rows.all()]
    assert sure == sorted(sure, reverse=True), "by the low ends"
    places = [r.locator("td").first.inner_text() for r in rows.all()]
    assert places[0].startswith("1")
    assert all(p.endswith("=") == (places.count(p) > 1) for p in places[:-1]), "a tie has two at least"
    badges = [(r.locator(".badge").inner_text(), r.inner_text()) for r in rows.all()]
    assert {badge for badge, row in badges if "bf16" in row} <= {"measured", "imported"}
    assert {badge for badge, _ in badges} <= {"measured", "imported", "datasheet"}  # other precisions of such GPUs
    best = rows.nth(0)
    gpu, tp, rate = (best.get_attribute(f"data-{name}") for name in ("gpu", "tp", "value"))
    assert page.locator("#claim .claim strong").inner_text()
    best.get_by_role("button").first.click()
    page.wait_for_selector(f"#answer[aria-busy=false] .command:has-text('--gpu {gpu} ')")
    settled(page)
    (command,) = commands(page)
    assert command.endswith(f"--tp {tp}")
    assert f"gpu={gpu}" in page.url
    assert values(page, "tokens_per_s")[0] / int(tp) == pytest.approx(float(rate), rel=1e-6), "row and prediction"
    fits(page, width)


def test_ranking_by_cost_needs_prices(visit, explorer):
    page = visit(explorer + COST)
    ranked(page)
    assert "Give prices" in page.locator("#claim .claim").inner_text()
    page.locator("#rank-prices").fill("h100:2, h200:3.5")
    expect(page.locator("#ranked tbody tr").first).to_have_attribute("data-value", re.compile(r"\d"))
    ranked(page)
    assert page.locator("#ranked tbody tr").first.get_attribute("data-gpu") in ("h100", "h200")
    assert "prices=h100" in page.url


def test_prices_are_read_as_on_the_command_line(visit, explorer):
    page = visit(explorer + QUICK)
    ranked(page)
    for text, found in price_cases.RIGHT.items():
        assert page.evaluate("text => Prices.parsed(text)", text) == {"prices": found, "wrong": []}
    for text, says in price_cases.WRONG.items():
        told = page.evaluate("text => Prices.parsed(text)", text)
        assert told["wrong"] == [says]
        assert told["prices"] == {}


def test_a_price_that_is_wrong_is_named_beside_the_box(visit, explorer):
    page = visit(explorer + COST)
    ranked(page)
    wrong = page.locator("#rank-prices-wrong")
    assert not wrong.is_visible()
    page.locator("#rank-prices").fill("h100=2\nH200:3,5")
    expect(wrong).to_have_text("H200:3,5: a comma stands between two GPUs; write H200:3.5")
    expect(page.locator("#rank-prices")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#ranked tbody tr").first).to_have_attribute("data-value", re.compile(r"\d"))
    ranked(page)
    assert page.locator("#ranked tbody tr").first.get_attribute("data-gpu") == "h100", "what is right counts"
    assert page.evaluate("Prices.parsed(Question.state.prices).prices") == {"h100": 2}
    page.locator("#rank-prices").fill("H200=3.5;h2000:3")
    expect(wrong).to_have_text("no GPU h2000; did you mean h200?")
    page.locator("#rank-prices").fill("H200=3.5;h100:2")
    expect(wrong).not_to_be_visible()
    for gpu in ("h200", "h100"):
        expect(page.locator(f"#ranked tr[data-gpu={gpu}]").first).to_have_attribute("data-value", re.compile(r"\d"))


def test_a_pasted_config_is_answered_as_it_says(visit, explorer):
    page = visit(explorer + QUICK + "&dtype=fp8")
    settled(page)
    page.locator("#model-name").click()
    page.locator("#model-name-list [role=option]", has_text="paste a config.json").click()
    page.locator("#pasted").fill((CONFIGS / "llama-3.1-70b-awq.json").read_text(encoding="utf-8"))
    expect(page.locator("#dtype")).to_have_value("auto")
    expect(page.locator("#answer .lead").first).to_contain_text("vllm, int4")


def test_a_change_while_the_page_opens_is_ranked(context, visit, explorer):
    held = []
    context.route("**/api/compare", lambda route: held.append(route))
    page = visit(explorer + COST + "&prompt=1001")
    page.locator("#rank-prices").fill("h100:2, h200:3.5")  # before the page's first question has its answer
    for route in held:
        route.continue_()
    context.unroute("**/api/compare")
    expect(page.locator("#ranked tbody tr").first).to_have_attribute("data-value", re.compile(r"\d"))


def test_curves_load_the_point_that_is_chosen(visit, explorer):
    page = visit(explorer + QUICK + "&prompt=1000")  # nothing measured lies between the points
    page.wait_for_selector("#curves svg.plot", timeout=60_000)
    curve = page.locator("#curves svg.plot").first
    assert curve.locator("path.between").count() == 1, "an interval is a band"
    curve.focus()
    curve.press("ArrowRight")
    curve.press("ArrowRight")
    assert "batch" in page.locator("#curves .tip").first.inner_text()
    curve.press("Enter")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--batch 2 ')")


def test_a_timeline_can_be_searched_zoomed_and_saved(visit, explorer, tmp_path):
    page = visit(explorer + QUICK + "&engine=hf-eager")
    page.wait_for_selector("#timeline-view svg", timeout=60_000)
    whole = page.locator("#timeline-view svg rect").count()
    page.locator("#timeline-search").fill("lm_head")
    assert page.locator("#timeline-found").inner_text() == "2 events match", "its launch and its kernel"
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    assert page.locator("#timeline-view svg rect").count() != whole
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download the trace for Perfetto").click()
    trace = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}


def test_a_tap_tells_the_numbers(browser, explorer):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(explorer + QUICK)
    settled(page)
    plot = page.locator("#answer svg.plot").first
    plot.scroll_into_view_if_needed()
    plot.focus()
    plot.press("ArrowRight")
    ring = plot.locator(".ring").bounding_box()
    plot.press("Escape")
    page.touchscreen.tap(ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2)
    page.locator("#answer .tip").first.wait_for(state="visible")
    assert "share" in page.locator("#answer .tip").first.inner_text()
    context.close()


def test_on_a_phone_the_question_is_a_sheet(visit, explorer):
    page = visit(explorer + QUICK, width=390, height=844)
    settled(page)
    page.locator("#batch").wait_for(state="hidden")
    page.get_by_role("button", name="Change the question").click()
    page.locator("#batch").fill("7")
    page.keyboard.press("Escape")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--batch 7 ')")
    page.locator("#batch").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.id") == "sheet"


@pytest.mark.parametrize("width", LAYOUTS)
def test_traffic_is_simulated_for_those_who_look(visit, explorer, capsys, width):
    page = visit(explorer + QUICK, width=width)
    settled(page)
    page.locator("#traffic-view").scroll_into_view_if_needed()
    page.wait_for_selector("#traffic[aria-busy=false] svg.plot")
    plots = page.locator("#traffic-view svg.plot")
    expect(plots).to_have_count(5)
    assert "limit 2 s" in plots.nth(0).text_content(), "the limit is a line"
    words = page.locator("#traffic-view .traffic-command").text_content().split()
    assert cli.main([*words[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["simulations"]
    plots.nth(0).focus()
    plots.nth(0).press("ArrowRight")
    tip = page.locator("#traffic-view .tip").first
    expect(tip).to_contain_text(f"{found[0]['rate_per_s']:g} requests/s")
    plots.nth(0).press("Enter")
    expect(page.locator("#traffic-held")).to_have_text(f"At {found[0]['rate_per_s']:g} requests/s")
    assert f"rate={found[0]['rate_per_s']:g}" in page.url
    fits(page, width)
