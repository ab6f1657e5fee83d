"""The explorer in a real browser: its numbers are the command line's, and every control does what it says."""

import json
import re
import shlex

import pytest

from chip.decoders import library
from chip.show import cli

pytest_plugins = ["browsing"]
QUICK = "#?which=tables&at=largest&by=throughput&prices="  # a burst on few GPUs: quick to rank
COST = QUICK.replace("throughput", "cost")
DEEP = (
    QUICK + "&precisions=auto&model=qwen3-8b&gpu=a100&beside=h200&"
    "engine=hf-graph&dtype=fp16&tp=1&batch=5&prompt=333&output=21"
)


@pytest.fixture
def answer(capsys):
    """What the command line answers to the command on the page."""

    def run(command):
        assert cli.main([*shlex.split(command)[1:], "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def settled(page):
    page.wait_for_selector("#answer[aria-busy=false] .metric .value")


def says(page, words):
    page.wait_for_selector(f"#answer[aria-busy=false] .command:has-text('{words}')")


def commands(page):
    return page.locator("#answer .command").all_text_contents()


def values(page, metric):
    return [float(v.get_attribute("data-value")) for v in page.locator(f"#metric-{metric} .value").all()]


def test_numbers_are_the_command_lines(visit, explorer, answer):
    page = visit(explorer + DEEP)
    settled(page)
    found = [answer(c) for c in commands(page)]
    assert [f["gpu"] for f in found] == ["a100", "h200"]
    assert (found[0]["model"], found[0]["engine"], found[0]["dtype"]) == ("qwen3-8b", "hf-graph", "fp16")
    assert (found[0]["batch"], found[0]["prompt"], found[0]["output"]) == (5, 333, 21)
    for metric in ("ttft_ms", "tpot_ms", "tokens_per_s", "e2e_ms"):
        assert values(page, metric) == [f[metric] for f in found]
    assert "TTFT" in page.locator("#said").text_content(), "told to those who do not look"
    shown = page.locator("#metric-tokens_per_s .value").first.inner_text().replace("\u202f", "")
    low, high = found[0]["interval"]["tokens_per_s"]
    assert low < float(shown.split()[0]) < high
    assert float(shown.split()[0]) == pytest.approx(found[0]["tokens_per_s"], rel=0.05)


def test_a_slider_changes_answer_and_link(visit, explorer, answer):
    page = visit(explorer + QUICK)
    settled(page)
    before = values(page, "tokens_per_s")
    page.get_by_label("Batch: requests at once, slider").press("ArrowRight")
    says(page, "--batch 12")
    assert values(page, "tokens_per_s") != before
    (command,) = commands(page)
    assert answer(command)["batch"] == 12
    assert "batch=12" in page.url
    assert values(page, "tokens_per_s") == [answer(command)["tokens_per_s"]]
    page.reload()
    settled(page)
    assert commands(page) == [command]


def test_numbers_typed_beside_the_slider_count(visit, explorer, answer):
    page = visit(explorer + QUICK)
    settled(page)
    page.locator("#prompt").fill("4097")
    says(page, "--prompt 4097 ")
    page.locator("#output").fill("1")
    says(page, "--output 1 ")
    assert page.locator("#answer").get_by_text("one token only").count() == 1
    assert values(page, "ttft_ms") == [answer(commands(page)[0])["ttft_ms"]]


def test_a_pasted_config(visit, explorer, answer, tmp_path, monkeypatch):
    page = visit(explorer + QUICK)
    settled(page)
    page.locator("#model-name").fill("paste")
    page.locator("#model-name").press("Enter")
    page.wait_for_selector("#answer [role=status]")
    assert "Paste the model's config.json" in page.locator("#answer [role=status]").inner_text()
    assert page.locator("#answer .bad").count() == 0, "an empty box is no error"
    page.locator("#pasted").fill("{")
    page.wait_for_selector("#answer [role=alert]")
    assert page.locator("#answer [role=alert]").inner_text().startswith("what is pasted is not JSON")
    config = json.loads((library.CONFIGS / "gpt2.json").read_text())
    config["n_layer"] = 5
    page.locator("#pasted").fill(json.dumps(config))
    settled(page)
    (command,) = commands(page)
    (tmp_path / "my-model.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert values(page, "ttft_ms") == [answer(command)["ttft_ms"]]
    kept = page.url
    shared = visit(kept)
    settled(shared)
    assert commands(shared) == [command], "the link holds the config"
    assert values(shared, "ttft_ms") == values(page, "ttft_ms")
    page.locator("#pasted").fill('{"architectures": ["<img src=x onerror=alert(1)>"]}')
    page.wait_for_selector("#answer [role=alert]")
    assert "'<img src=x onerror=alert(1)>' is not known" in page.locator("#answer [role=alert]").inner_text()


def test_a_model_that_does_not_fit_says_so(visit, explorer):
    page = visit(explorer + QUICK + "&model=llama-3.1-405b&gpu=l4")
    settled(page)
    said = page.locator("#answer .note.bad").first.inner_text()
    assert re.match(r"does not fit: needs .* a GPU; vllm may use [\d.]+ GiB \(\d+ %\) of its [\d.]+ GiB", said)
    assert page.locator("#answer .stack .limit.usable").count() == 1
    assert page.locator("#answer .stack .limit.capacity").count() == 1, "what overflows is marked"


def test_operator(visit, explorer, answer):
    page = visit(explorer + QUICK)
    page.wait_for_selector("#operator-us")
    page.locator("#op").select_option("attention")
    page.wait_for_selector("#operator-answer .command:has-text('attention')")
    command = page.locator("#operator-answer .command").inner_text()
    assert float(page.locator("#operator-us").get_attribute("data-value")) == answer(command)["us"]


def test_roofline_tells_its_numbers_by_keyboard(visit, explorer):
    page = visit(explorer + QUICK)
    settled(page)
    plot = page.locator("#answer svg.plot").first
    plot.focus()
    plot.press("ArrowRight")
    first = page.locator("#answer .tip").first.inner_text()
    assert re.search(r"share\s+[\d.]+ %", first)
    plot.press("ArrowRight")
    assert page.locator("#answer .tip").first.inner_text() != first
    plot.press("Escape")
    page.locator("#answer .tip").first.wait_for(state="hidden")


def test_themes(visit, explorer):
    page = visit(explorer + QUICK, theme="dark")
    settled(page)

    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = ground()
    page.get_by_role("button", name="Switch to the light theme").click()
    assert ground() != dark
    page.reload()
    settled(page)
    assert ground() != dark, "the choice is kept"


def test_phone_has_no_sideways_scroll(visit, explorer):
    page = visit(explorer + DEEP, width=360, height=740)
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
