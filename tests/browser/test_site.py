"""The site: report and explorer in a folder, from a plain static host and from disk. The explorer computes in the
browser: its digits are the server's."""

import functools
import http.server
import json
import random
import sys
import threading
from pathlib import Path
from urllib.error import URLError

import pytest
from browsing import cannot_run
from playwright.sync_api import expect
from test_explorer import commands, settled, values
from test_explorer_page import fits

from chip import catalog
from chip.show import cli, webpage
from chip.show.report import page as report_page
from chip.show.report import sources
from chip.show.serve import api, browser, ranking

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import website  # noqa: E402

pytest_plugins = ["browsing"]
RUNS = ROOT / "results" / "h200" / "runs" / "vllm-1.json"
COLD_MS = 120_000  # a busy machine; 15 s where it is idle
QUESTIONS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("site")
    try:
        fetched = website.runtime()
    except (URLError, TimeoutError) as e:
        cannot_run(f"Pyodide is not in {website.CACHE} and could not be fetched ({e})")
    website.explorer(made, fetched)
    report_page.write_packed(made, sources.gather([RUNS], "Runs"), website.EXPLORER)
    return made


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def host(folder):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=folder)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def questions():
    """Of all kinds that one configuration and a ranking are asked for, drawn from all models and GPUs."""
    draw = random.Random(7)
    models, gpus = ([row["name"] for row in rows()] for rows in (catalog.models, catalog.gpus))
    start = {key: ranking.START[key] for key in ("model", "engine")}
    yield "/api/estimate", {"op": "linear", "gpu": "h100", "m": 77, "n": 4096, "k": 1024}
    yield "/api/rank", {**start, "gpu": gpus[:6], "batch": "largest", "limits": {"ttft_ms": 900}, "prices": {"h100": 2}}
    yield "/api/predict", {"model": "no-such-model"}
    yield "/api/traffic", {**start, "gpu": "h200", "rates": [3.0], "requests": 40}
    yield "/api/plan", {**start, "gpu": ["l40s"], "limits": {"ttft_ms": 2000}, "requests": 50}
    while True:
        sizes = {name: draw.randint(1, most) for name, most in (("batch", 64), ("prompt", 5000), ("output", 300))}
        one = {"gpu": draw.choice(gpus), "tp": draw.choice((1, 2, 4, 8)), "dtype": draw.choice(("auto", "fp8"))}
        asked = {"model": draw.choice(models), "engine": draw.choice(("vllm", "hf-graph")), **sizes}
        yield "/api/compare", {**asked, "configurations": [one]}


@pytest.mark.slow
def test_the_browser_gives_the_digits_of_the_server(visit, host):
    page = visit(f"{host}/explorer.html")
    settled(page)
    asked = [question for question, _ in zip(questions(), range(QUESTIONS))]
    page.set_default_timeout(COLD_MS)
    found = page.evaluate(
        """async (asked) => {
          const out = [];
          for (const [path, body] of asked)
            out.push(await Question.ask(path, body).catch((e) => ({ error: e.message })));
          return out;
        }""",
        asked,
    )
    answered = 0
    for (path, body), got in zip(asked, found):
        status, text = browser.answer(path, json.dumps(body))
        assert json.loads(text) == got, (path, body)
        answered += status == 200
    assert answered > 0.7 * QUESTIONS


def test_it_opens_with_answers_and_loads_python_for_the_first_own_question(visit, host, capsys):
    asked = []
    page = visit(f"{host}/explorer.html")
    page.on("request", lambda r: asked.append(r.url))
    settled(page)
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr")
    page.wait_for_selector("#curves svg.plot")
    page.wait_for_selector("#timeline-view svg")
    page.locator("#traffic-view").scroll_into_view_if_needed()
    page.wait_for_selector("#traffic[aria-busy=false] svg.plot")
    assert not [url for url in asked if "runtime" in url], "nothing is loaded to look at the page"
    page.locator("#prompt").fill("777")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--prompt 777 ')", timeout=COLD_MS)
    expect(page.locator("#local")).to_contain_text("Computed in this browser")
    (command,) = commands(page)
    assert cli.main([*command.split()[1:], "--json"]) == 0
    assert values(page, "ttft_ms") == [json.loads(capsys.readouterr().out)["ttft_ms"]]
    loaded = sum((Path(website.CACHE) / url.rpartition("/")[2]).exists() for url in asked)
    assert loaded >= 5


def test_from_disk_it_shows_what_it_came_with_and_says_why_not_more(visit, folder):
    page = visit(f"{folder.as_uri()}/explorer.html", width=390)
    settled(page)
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr")
    expect(page.locator("#local")).to_contain_text("python -m http.server")
    page.get_by_role("button", name="Change the question").click()
    page.locator("#prompt").fill("777")
    expect(page.locator("#answer [role=status]")).to_contain_text("browsers start no Python from a file")
    fits(page, 390)


def test_what_a_browser_may_ask():
    assert browser.answer(api.HUB, '{"model": "a/b"}')[0] == 404
    assert browser.answer("/api/predict", "{")[0] == 400
    status, text = browser.answer("/api/predict", '{"model": "gpt2"}')
    assert (status, json.loads(text)["model"]) == (200, "gpt2")


def test_what_is_packed_comes_out_as_it_went_in(visit, folder):
    page = visit(f"{folder.as_uri()}/index.html")
    data = json.loads(page.locator("#data").text_content())
    shown = webpage.rounded(sources.gather([RUNS], "Runs").document(), report_page.DIGITS)
    assert {name: table["rows"] for name, table in data["tables"].items()} == {
        name: table["rows"] for name, table in shown["tables"].items()
    }
    odd = [{}, {"a": [], "b": [[1, None], [2, {}]]}, {"a": [3]}, {"a": 4, "b": 5}, {"a": 6, "b": {"c": 7}}, [[8], [9]]]
    assert page.evaluate("(text) => Packed.open(text)", webpage.pack(odd)) == odd


def test_a_run_of_the_report_leads_to_its_question(visit, folder):
    page = visit(f"{folder.as_uri()}/index.html#runs?model=llama-3.1-8b")
    link = page.locator("#runs tbody a", has_text="explore").first
    link.wait_for()
    assert link.get_attribute("href").startswith("explorer.html#?model=llama-3.1-8b&gpu=h200&engine=vllm&dtype=bf16")
    with page.expect_download() as saved:
        page.get_by_role("button", name="summary.json").click()
    assert json.loads(saved.value.path().read_text(encoding="utf-8"))["schema"] == "chip.summary/1"
