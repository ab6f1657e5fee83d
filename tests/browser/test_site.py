"""The site: report and explorer in a folder, opened from disk and from a static host, without a server of ours."""

import functools
import http.server
import json
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect
from test_explorer import commands, settled, values
from test_explorer_page import LAYOUTS, fits

from chip.show import cli, webpage
from chip.show.report import page as report_page
from chip.show.report import sources
from chip.show.serve import compare, page, ranking, site

pytest_plugins = ["browsing"]
RUNS = Path(__file__).parents[2] / "results" / "h200" / "runs" / "vllm-1.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, explorer):  # the explorer's own first ranking is then known already
    made = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "_gpus", lambda: page.first_ranking(ranking.START)["gpu"])
        patch.setattr(site, "WORKLOADS", site.WORKLOADS[:1])
        patch.setattr(site, "BATCHES", (8,))
        report_page.write_packed(made, sources.gather([RUNS], "Runs"), site.EXPLORER)
        site.write(made, ["llama-3.1-8b"])
    return made


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module", params=["disk", "host"])
def address(request, folder):
    if request.param == "disk":
        yield folder.as_uri()
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=folder)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_its_answers_are_those_of_the_command_line(visit, address, capsys):
    page = visit(f"{address}/explorer.html")
    settled(page)
    (command,) = commands(page)
    assert cli.main([*command.split()[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for metric in ("ttft_ms", "tpot_ms", "tokens_per_s", "e2e_ms"):
        assert values(page, metric) == [found[metric]]
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr")
    page.wait_for_selector("#curves svg.plot")
    page.wait_for_selector("#timeline-view svg")
    page.locator("#traffic-view").scroll_into_view_if_needed()
    page.wait_for_selector("#traffic[aria-busy=false] svg.plot")


@pytest.mark.parametrize("width", LAYOUTS)
def test_it_states_its_grid_and_what_lies_outside(visit, folder, width):
    page = visit(f"{folder.as_uri()}/explorer.html#?model=llama-3.1-8b&batch=7", width=width)
    outside = page.locator("#answer [role=status]")
    expect(outside).to_contain_text("chip predict llama-3.1-8b --gpu h200 --engine vllm --batch 7 --prompt 1024")
    grid = json.loads((folder / site.RECORD).read_text())["grid"]
    stated = page.locator("#grid")
    expect(stated).to_contain_text(
        f"{len(grid['gpus'])} GPUs at splits of 1, 2, 4, 8 in the config's own precision and fp8"
    )
    if width < 800:
        page.get_by_role("button", name="Change the question").click()
    chosen = page.locator("#configuration")
    expect(chosen.locator("option")).not_to_have_count(0)
    chosen.select_option("h100~1~auto~8")
    page.wait_for_selector("#answer[aria-busy=false] .command:has-text('--gpu h100 ')")
    page.locator("#beside").select_option("h200~1~auto~8")
    expect(page.locator("#answer .command")).to_have_count(2)
    fits(page, width)


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


def test_configurations_are_compared_as_by_the_server(visit, folder):
    page = visit(f"{folder.as_uri()}/explorer.html#?model=llama-3.1-8b&beside=h100~1~auto")
    expect(page.locator("#answer .command")).to_have_count(2)
    asked = {"model": "llama-3.1-8b", "engine": "vllm", "batch": 8, "prompt": 1024, "output": 128}
    asked["configurations"] = [{"gpu": gpu, "tp": 1, "dtype": "auto"} for gpu in ("h200", "h100")]
    worked_out = page.evaluate("(asked) => Site.ask('/api/compare', asked)", asked)["against_first"]
    assert worked_out == compare.compare(asked)["against_first"]
    ratio = worked_out[1]["ratio"]["tpot_ms"]
    tie = ", tie" if worked_out[1]["tie"]["tpot_ms"] else ""
    expect(page.locator("#metric-tpot_ms")).to_contain_text(f"{ratio:.3g} \u00d7 A{tie}")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV of the curves").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("kind,prompt,output,gpu,")
    assert {line.split(",")[3] for line in lines[1:]} == {"h200", "h100"}
