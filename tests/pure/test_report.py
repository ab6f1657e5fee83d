"""`chip report`: what artifacts say is in the summary, the page carries it safely, nothing is dropped in silence."""

import base64
import csv
import gzip
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
import samples
from folding import each

from chip import stats
from chip.files import codec
from chip.hardware import gpus, roofline
from chip.show import cli, webpage
from chip.show.report import columns, page, sources
from chip.show.report.summary import Summary
from chip.show.webpage import EXPLORER, STATIC
from chip.types import HardwareProfile

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results" / "h200"
EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 "quoted" \' {{@data@}}'


def embedded(html):
    """The data of a page, as a browser would read it."""
    packed = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1]
    return unpacked(json.loads(gzip.decompress(base64.b64decode(packed))))


def unpacked(value):
    """As packed.js has it: rows from their columns."""
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$" in value:
        return [row for names, *columns in value["$"] for row in rows(names, [unpacked(c) for c in columns])]
    return {name: unpacked(each) for name, each in value.items()}


def rows(names, columns):
    return [dict(zip(names, row)) if names else list(row) for row in zip(*columns)]


# -- what is read -----------------------------------------------------------------------------------------------------
def test_every_table_has_rows(everything):
    assert [name for name, rows in everything.tables.items() if not rows] == []
    assert list(sources.troubles(everything)) == []


def test_ceilings_are_the_profiles(everything):
    profile = gpus.read_profile(H200 / "calibration-1.json")
    row = next(everything.rows("ceilings", name="hbm_copy", source="calibration-1.json"))
    assert row["value"] == profile.ceilings["hbm_copy"].value
    assert row["datasheet"] == gpus.spec("h200").ceilings["hbm"].value
    assert row["share_of_datasheet"] == pytest.approx(row["value"] / row["datasheet"])
    curve = list(everything.rows("curves", curve="staircase", source="calibration-1.json"))
    assert [r["y"] for r in curve] == list(profile.curves["staircase"].y)


def test_a_profile_given_twice_counts_once(everything):
    repeated = next(everything.rows("sources", file="h200.json"))
    assert (repeated["status"], repeated["reason"]) == ("repeated", "the same as calibration-1.json")
    assert not any(everything.rows("ceilings", source="h200.json"))


def test_operators_stand_under_their_roofs(everything):
    row = next(r for r in everything.rows("operators", source="operators-1.jsonl", context="cold") if r["flops"] > 1e12)
    m = next(
        m
        for m in sources.collectors()["chip.measurement"].measurements.read(H200 / "operators-1.jsonl")[1]
        if json.dumps(m.op) == row["axes"] and m.context == "cold"
    )
    roofs = roofline.from_profile(gpus.read_profile(H200 / "calibration-1.json"))
    point = roofline.place(m, roofs)
    assert row["p50_us"] == stats.median(m.samples_ns) / 1e3
    assert (row["share_of_roof"], row["bound"]) == (point.share, point.bound)


def test_runs_have_their_percentiles(everything):
    run = samples.a_run(engine="hf-eager", slow=2.5)
    row = next(everything.rows("runs", engine="hf-eager", batch=4, source="runs-1.json"))
    assert row["tokens_per_s"] == run.tokens_per_s
    assert row["latency_p50_ms"] == run.e2e_s * 1e3
    assert row["ttft_p95_ms"] == stats.quantile(run.ttft_ns, 0.95) / 1e6
    assert row["joules_per_token"] == run.joules_per_token
    failed = next(everything.rows("runs", status="failed", source="runs-1.json"))
    assert (failed["reason"], failed["tokens_per_s"]) == ("out of memory", None)


def test_models_that_were_cut_down_take_no_headline(tmp_path):
    fast = samples.a_run(model="tinyllama-2-layers", slow=0.01)
    samples.write_runs(tmp_path / "runs.json", fast, samples.a_run())
    found = sources.gather([tmp_path])
    assert [r["bundled"] for r in found.rows("runs")] == [True, False]
    assert next(found.rows("headlines", name="Highest throughput"))["value"] == samples.a_run().tokens_per_s
    samples.write_runs(tmp_path / "runs.json", fast)
    assert next(sources.gather([tmp_path]).rows("headlines", unit="tok/s"))["value"] == fast.tokens_per_s


def test_runs_of_one_scenario_are_compared(everything):
    found = list(everything.rows("comparisons", point="pp128+tg5xb4", metric="end to end"))
    verdicts = {(r["first"], r["second"]): r["verdict"] for r in found}
    assert verdicts["hf-graph (runs-1.json)", "hf-graph (runs-2.json)"] == "unclear"
    assert verdicts["hf-graph", "hf-eager"] == "slower"
    assert verdicts["hf-eager", "vllm"] == "faster"
    assert any(r["model"] == "gpt2" for r in everything.rows("comparisons")), "and what chip compare said"


def test_validation_kernels_and_replay(everything):
    assert len(list(everything.rows("predictions", who="chip", source="sample-validation.json"))) == 60
    assert 2.7 in [pytest.approx(r["median_percent"]) for r in everything.rows("accuracy", kind="class")]
    peer = next(everything.rows("accuracy", kind="peer", who="peer 1.0"))
    assert peer["chip_median_percent"] == pytest.approx(2.0)
    rung = next(everything.rows("kernels", step="5_wgmma", source="hgemm.json"))
    assert rung["baseline_p50_us"] == pytest.approx(200)
    assert rung["speedup_p50"] == pytest.approx(200 / 205)
    assert rung["share_of_roof"] == 0.4
    made_up = {"title": "bloom-560m hf-graph prefill 1x5"}
    replay = next(everything.rows("replays", **made_up))
    assert [replay[key] for key in ("error_percent", "busy_error_percent", "energy_low_percent")] == [0.5, 0.7, -8.0]
    assert [r["us"] for r in everything.rows("replay_terms", **made_up)][:3] == [980.0, -60.0, 75.0]
    worst = max(everything.rows("replays"), key=lambda r: abs(r["error_percent"]))
    assert [c["value"] for c in everything.rows("headlines", section="replay")] == [worst["error_percent"]], "no pick"


def test_every_comparison_is_there_and_repeats_meet_their_first_only(tmp_path):
    again = [samples.a_run(engine="hf-eager") for _ in range(4)]
    samples.write_runs(tmp_path / "runs.json", *again, samples.a_run(engine="vllm"))
    rows = list(sources.gather([tmp_path]).rows("comparisons", metric="end to end"))
    assert [r["kind"] for r in rows] == ["other engine", "repeat", "repeat", "repeat"]
    assert (rows[0]["first"], rows[0]["second"]) == ("hf-eager", "vllm")


def test_engines_are_compared_by_what_ran_in_turn_and_never_by_calibration_models(tmp_path):
    for engine in ("native", "vllm"):
        runs = [samples.a_run(model=f"llama-{n}-layers", engine=engine, slow=n) for n in (4, 20)]
        samples.write_runs(tmp_path / f"{engine}.json", *runs)
    record = H200 / "native" / "beside-vllm.json"
    found = sources.gather([tmp_path, record])
    assert len(list(found.rows("runs"))) == 4
    assert {r["source"] for r in found.rows("comparisons")} == {record.name}
    assert next(found.rows("sources", file=record.name))["made"] == "2026-11-17"
    in_turn = json.loads(record.read_text())["rows"]
    shown = {r["point"]: r for r in found.rows("comparisons", metric="TPOT")}
    for row in in_turn:
        assert shown[f"pp{row['prompt']}+tg33xb{row['batch']}"]["ratio"] == pytest.approx(
            row["tpot_s_native_over_vllm"]
        )
    medians = {r["name"]: r["value"] for r in found.rows("tallies", section="compared")}
    ratios = {m: stats.median([r[f"{m}_s_native_over_vllm"] for r in in_turn]) for m in ("tpot", "ttft")}
    assert medians == pytest.approx({f"{m.upper()} of native over vllm, in turn": r for m, r in ratios.items()})


def test_headlines_are_values_of_other_tables(everything):
    values = {v for name, rows in everything.tables.items() if name != "headlines" for r in rows for v in r.values()}
    assert len(everything.tables["headlines"]) >= 7
    assert all(card["value"] in values for card in everything.tables["headlines"])
    sections = set(re.findall(r'^ {4}\[\s*"(\w+)",\s*"', (STATIC / "report.js").read_text(), re.MULTILINE))
    assert {card["section"] for card in everything.tables["headlines"]} <= sections


# -- the files --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """The summary of one made-up file of every kind."""
    return sources.gather([samples.write_all(tmp_path_factory.mktemp("some"))])


def test_csv_and_json_say_the_same(some):
    found = json.loads(some.json())
    assert found["schema"] == columns.SCHEMA
    rows = list(csv.DictReader(io.StringIO(some.csv())))
    assert list(rows[0]) == columns.all_columns()
    for name, table in found["tables"].items():
        assert table["columns"] == [c.name for c in columns.TABLES[name]]
        assert len([r for r in rows if r["table"] == name]) == len(table["rows"])
    run = next(r for r in rows if r["table"] == "runs")
    assert float(run["tokens_per_s"]) == next(some.rows("runs"))["tokens_per_s"]


def test_columns_are_documented_and_stable():
    assert columns.document() in (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    wanted = {
        "runs": "model gpu engine tokens_per_s latency_p50_ms latency_p95_ms vram_bytes joules_per_token",
        "kernels": "baseline_p50_us baseline_p95_us optimised_p50_us optimised_p95_us speedup_p50 max_abs_error",
        "predictions": "predicted measured error_percent",
    }
    for table, names in wanted.items():
        assert set(names.split()) <= {c.name for c in columns.TABLES[table]}


def test_page_is_small_whole_and_keeps_to_itself(some):
    html = page.render(some)
    assert len(html) < 3_000_000
    data = embedded(html)
    assert all(table.pop("left_out") == 0 for table in data["tables"].values())
    assert (data.pop("explorer"), data.pop("alone")) == (EXPLORER, False)
    assert data == webpage.rounded(json.loads(some.json()), page.DIGITS)
    assert not re.findall(r"""(?:src|href)=["'](?!summary\.|data:|#)[^"']*""", html.split('id="data"')[0])
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "").replace(EXPLORER, "")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "innerHTML" not in html
    assert "@" not in re.sub(r"@media|@page", "", html.split("<script")[0])


def test_a_page_of_too_many_rows_says_what_it_leaves_out(everything, monkeypatch):
    monkeypatch.setattr(page, "MOST_ROWS", 10)
    found = embedded(page.render(everything))["tables"]["operators"]
    assert len(found["rows"]) == 10
    assert found["left_out"] == len(everything.tables["operators"]) - 10


@each(sorted(p.name for p in STATIC.iterdir()))
def test_nothing_makes_markup_of_data_or_asks_elsewhere(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert word not in text, word
    handed_over = ["https://ui.perfetto.dev"] if name == "perfetto.js" else []  # where a reader asks for it
    assert re.findall(r"https?://[\w./-]*", text) in (handed_over, ["http://www.w3.org/2000/svg"])


# -- what is hostile --------------------------------------------------------------------------------------------------
def test_markup_is_text_everywhere(tmp_path):
    samples.write_runs(tmp_path / "runs.json", samples.a_run(model=EVIL, engine=EVIL, variant=EVIL, device=EVIL))
    lines = samples.measurement_lines(3, implementation=EVIL, flags=[EVIL])
    (tmp_path / "ops.jsonl").write_text(lines.replace(samples.DEVICE, json.dumps(EVIL)[1:-1]))
    found = sources.gather([tmp_path], EVIL)
    html = page.render(found)
    assert next(found.rows("runs"))["model"] == EVIL
    assert embedded(html)["title"] == EVIL
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    assert "<img" not in html
    assert "onerror=alert(2)>" not in html
    assert "\u2028" not in html[html.index("<script") :]


def test_a_formula_stays_text_in_a_spreadsheet(tmp_path):
    samples.write_runs(tmp_path / "runs.json", samples.a_run(model="=HYPERLINK(1)"))
    rows = list(csv.DictReader(io.StringIO(sources.gather([tmp_path]).csv())))
    assert next(r for r in rows if r["table"] == "runs")["model"] == "'=HYPERLINK(1)"


def test_numbers_no_browser_holds_are_told_as_text():
    out = Summary()
    for value in (float("nan"), float("-inf"), 10**400, 2**60, True, "x" * 5000, {"a": [1]}, "\ud800"):
        out.add("headlines", value=value)
    values = [r["value"] for r in out.tables["headlines"]]
    assert values[:5] == ["nan", "-inf", "a huge number", float(2**60), True]
    assert len(values[5]) < 2100
    assert values[6:] == ['{"a": [1]}', "?"]
    json.loads(out.json())
    out.csv()


BROKEN = {
    "cut.json": '{"schema": "chip.runs/1", "data": {"runs": [',
    "list.json": "[1, 2, 3]",
    "text.json": "hello",
    "binary.json": b"\xff\xfe\x00",
    "deep.json": "[" * 100_000,
    "future.json": '{"schema": "chip.validation/99", "points": 3}',
    "missing.json": '{"schema": "chip.validation/1", "gpu": "h200"}',
    "wrong.json": '{"schema": "chip.comparison/1", "pairs": [3]}',
    "nan.json": '{"schema": "chip.comparison_report/1", "title": NaN, "tier_breakdown": null}',
    "runs.json": '{"schema": "chip.runs/1", "environment": {}, "inputs": [], "data": {"runs": [{"model": 3}]}}',
    "profile.json": '{"schema": "chip.hardware_profile/1", "environment": {}, "inputs": [], "data": {}}',
    "ops.jsonl": '{"schema": "chip.measurement/1", "device": "x", "environment": {}}\n{"op": 3}\n',
    "empty.jsonl": "",
}


def test_what_is_broken_is_refused_by_name_and_the_rest_is_shown(tmp_path, capsys):
    for name, content in BROKEN.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "foreign.json").write_text('{"schema": "other.thing/3"}')
    samples.write_runs(tmp_path / "good.json", samples.a_run())
    assert cli.main(["report", str(tmp_path), "-o", str(tmp_path / "site")]) == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    lines = err.splitlines()
    assert len(lines) == len(BROKEN) + 1
    for name in BROKEN:
        assert sum(f": {name}: " in line for line in lines) == 1, name
    assert "not understood: foreign.json: no section shows this schema" in lines
    assert out.startswith("1 file: 1 runs")
    data = embedded((tmp_path / "site" / "index.html").read_text())
    assert len(data["tables"]["sources"]["rows"]) == len(BROKEN) + 2


def test_a_huge_file_is_refused_in_one_line(tmp_path, capsys):
    with open(tmp_path / "huge.json", "wb") as f:
        f.truncate(100 << 20)
    samples.write_runs(tmp_path / "good.json", samples.a_run())
    assert cli.main(["report", str(tmp_path), "-o", str(tmp_path / "site")]) == 1
    assert capsys.readouterr().err.startswith("refused: huge.json: is larger than 64 MiB, the most that is read")


def test_half_a_file_leaves_nothing(tmp_path):
    document = samples.validation()
    del document["points"][40]["measured"]
    (tmp_path / "v.json").write_text(json.dumps(document))
    found = sources.gather([tmp_path])
    assert found.tables["predictions"] == []
    assert "KeyError: 'measured'" in next(sources.troubles(found))


def test_profiles_of_another_device_have_operators_without_roofs(tmp_path):
    (tmp_path / "ops.jsonl").write_text(samples.measurement_lines(3).replace(samples.DEVICE, "Some CPU"))
    row = next(sources.gather([tmp_path]).rows("operators"))
    assert row["p50_us"] > 0
    assert row["share_of_roof"] is None


def test_a_profile_with_a_number_that_is_not_finite_is_refused(tmp_path):
    profile = codec.to_json(gpus.read_profile(H200 / "calibration-1.json"))
    profile["power"]["idle_power"]["value"] = float("nan")
    whole = {"schema": HardwareProfile.SCHEMA, "environment": {}, "inputs": [], "data": profile}
    (tmp_path / "p.json").write_text(json.dumps(whole))
    found = sources.gather([tmp_path])
    assert "NaN is not a number" in next(iter(sources.troubles(found)))
    json.loads(found.json())


# -- the command ------------------------------------------------------------------------------------------------------
def test_command_writes_three_files(tmp_path, capsys):
    site = tmp_path / "site"
    some = [str(H200 / name) for name in ("calibration-1.json", "operators-1.jsonl")]
    assert cli.main(["report", *some, "-o", str(site), "--title", "My GPU", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(site / "index.html")
    assert found["rows"]["operators"] > 100
    assert sorted(p.name for p in site.iterdir()) == ["index.html", "summary.csv", "summary.json"]
    assert "<title>My GPU</title>" in (site / "index.html").read_text()
    assert cli.main(["report", some[0], str(site), "-o", str(site)]) == 0, "its own files are no results"
    assert "summary.json" not in capsys.readouterr().err


def test_command_says_what_it_misses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report"]) == 2
    assert cli.main(["report", "nowhere.json"]) == 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", "empty"]) == 2
    (tmp_path / "a.json").write_text("{}")
    assert cli.main(["report", "a.json"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "chip report: nothing to report: there is no folder artifacts; give files or folders of results",
        "chip report: nowhere.json: no such file or folder",
        "chip report: nothing to report: the folders hold no .json or .jsonl file",
        "chip report: nothing to report: not understood: a.json: has no schema",
    ]
    assert not (tmp_path / "site").exists()
    (tmp_path / "artifacts").mkdir()
    samples.write_runs(tmp_path / "artifacts" / "llm.json", samples.a_run())
    assert cli.main(["report"]) == 0
    assert (tmp_path / "site" / "index.html").is_file()


def test_runs_that_the_explorer_knows_have_its_question():
    rows = list(sources.gather([H200 / "runs" / "vllm-1.json"]).rows("runs"))
    asked = [dict(parse_qsl(r["question"])) for r in rows if r["question"]]
    assert len(asked) == sum(r["bundled"] for r in rows) > 0
    assert {a["gpu"] for a in asked} == {"h200"}
    assert asked[0]["batch"] == str(next(r for r in rows if r["question"])["batch"])


def test_tallies_are_medians_and_counts_of_other_tables(everything):
    first = {name: next(everything.rows("tallies", section=name)) for name in ("operators", "compared", "provenance")}
    shares = [
        r["share_of_roof"] for r in everything.rows("operators", status="ok", context="cold")
        if r["share_of_roof"] is not None and r["p50_us"] >= 10
    ]  # fmt: skip
    assert (first["operators"]["value"], first["operators"]["count"]) == (stats.median(shares), len(shares))
    read = list(everything.rows("sources", status="read"))
    assert (first["provenance"]["value"], first["provenance"]["unit"]) == (len(read), "files")
    assert first["provenance"]["count"] == sum(r["records"] or 0 for r in read)
    assert first["compared"]["unit"] == "x"
    cards = {c["section"] for c in everything.rows("headlines")}
    assert cards >= {"operators", "compared", "provenance"}


def test_a_ratio_of_engines_reads_one_way_round(tmp_path):
    for name, first, second in ("a", "hf-eager", "vllm"), ("b", "vllm", "hf-eager"):
        runs = [replace(samples.a_run(engine=e), model=f"{name}-model") for e in (first, second)]
        samples.write_runs(tmp_path / f"{name}.json", *runs)
    tallies = list(sources.gather([tmp_path]).rows("tallies", section="compared"))
    assert {t["name"] for t in tallies} == {"TPOT of vllm over hf-eager", "TTFT of vllm over hf-eager"}
    assert [t["count"] for t in tallies] == [2, 2]


def test_the_error_of_a_product_is_of_the_kernel_that_was_measured_most():
    """Of two that the bundled points have: our own comes first by name."""
    found = sources.gather([ROOT / "src" / "chip" / "data" / "points" / "h200"])
    products = [r for r in found.rows("accuracy", kind="operator") if r["name"].startswith("linear ")]
    card = next(found.rows("headlines", name="Error of a matrix product, median"))
    assert len(products) > 1
    assert card["detail"].startswith(f"{max(r['points'] for r in products)} shapes")
