"""Every figure of the pages that a function of doc_figures computes is what it gives; and how they are written."""

import json
import re
import shlex
import struct
from pathlib import Path

import doc_figures
import pytest
from doc_figures import StaleError, accuracy, scripts

from chip.show import cli
from chip.units import percent
from chip.validate.classes import judge_classes

ROOT = Path(__file__).parents[2]
ALL = (ROOT / "README.md", ROOT / "results/h200/findings.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = [page for page in ALL if doc_figures.has_figures(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_what_their_functions_give(page):
    text = page.read_text(encoding="utf-8")
    assert doc_figures.written(text) == text, f"run `python tests/pure/test_docs.py {page.relative_to(ROOT)}`"


def test_the_record_of_validation_is_of_the_predictions_of_today():
    """As its classes are printed, of which the report and the index of validated runs are made."""
    record = json.loads((ROOT / "results" / "h200" / "validation.json").read_text())["data"]["classes"]
    stated = {
        row["class"]: (row["points"], percent(row["median"]), percent(row["p90"])) for row in record if row["points"]
    }
    made = {
        j.wanted.title: (j.found.points, percent(j.found.median), percent(j.found.p90))
        for j in judge_classes(accuracy.judged().points)
        if j.found
    }
    assert stated == made, "run `python benchmarks/renew.py`"


@pytest.mark.parametrize("suite", ["argonne", "llmservingsim"])
def test_records_of_published_suites_are_of_the_predictions_of_today(suite):
    published = scripts.load("published")
    stated, _ = published.read(suite)
    made = {what: times for what, *times in published.predictions(suite)}
    assert made.keys() == stated.keys()
    for what, times in made.items():
        assert times == pytest.approx(stated[what], rel=1e-3), (
            f"{what}: run `python benchmarks/published.py {suite} SOURCE`"
        )


def drawn() -> list[tuple[str, str]]:
    """(picture, the command line that draws it) of every page that has both."""
    found = []
    for page in ALL:
        text = page.read_text(encoding="utf-8")
        shell = dict(re.findall(r"^(\w+)=(\S+)$", text, re.MULTILINE))
        for line in re.findall(r"^chip .* --plot docs/img/\S+\.png.*", text, re.MULTILINE):
            line = re.sub(r"\$(\w+)", lambda m, shell=shell: shell[m[1]], line)
            found.append((re.search(r"docs/img/(\S+)", line)[1], line))
    return found


def words_of(picture: Path) -> set[str]:
    """The figures that a picture names, by its Description."""
    data, at = picture.read_bytes(), 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + length]
        if kind == b"tEXt" and chunk.startswith(b"Description\0"):
            return {w for w in chunk.decode("latin-1").splitlines() if re.search(r"\d.*[ %]", w)}
        at += 12 + length
    return set()


@pytest.mark.parametrize(("name", "line"), drawn(), ids=lambda each: each if each.endswith(".png") else "")
def test_a_picture_names_the_figures_of_today(name, line, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    words[words.index("--plot") + 1] = str(tmp_path / name)
    if "--output-dir" in words:
        words[words.index("--output-dir") + 1] = str(tmp_path)
    assert cli.main(words) == 0, capsys.readouterr().err
    assert words_of(ROOT / "docs" / "img" / name) == words_of(tmp_path / name) != set(), f"run `{line}`"


def test_numbers_are_replaced_where_the_rest_is_of_the_same_form(monkeypatch):
    monkeypatch.setattr(
        doc_figures, "computed", lambda call: {"a.b c": "-1.5 %, 20 % (**no**)", "d.e": "1,200 runs"}[call]
    )
    text = "It is +12.3 %, 4\n% (yes)<!-- from: a.b c -->, of\n90 runs<!-- from: d.e -->."
    made = "It is -1.5 %, 20\n% (**no**)<!-- from: a.b c -->, of\n1,200 runs<!-- from: d.e -->."
    assert doc_figures.written(text) == made
    assert doc_figures.written(made) == made
    with pytest.raises(StaleError, match="which is not of the form of '1,200 runs'"):
        doc_figures.written("90 models<!-- from: d.e -->")


def test_rows_are_replaced(monkeypatch):
    monkeypatch.setattr(doc_figures, "computed", lambda call: ["| new |"])
    text = "<!-- table: a.b -->\n| old |\n| old |\n<!-- end of table -->\n"
    assert doc_figures.written(text) == "<!-- table: a.b -->\n| new |\n<!-- end of table -->\n"
