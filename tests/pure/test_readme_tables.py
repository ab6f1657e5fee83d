"""Tables on the pages that come from results are those of the results."""

import re
from pathlib import Path

import pytest
import samples

from chip.hardware import gpus
from chip.show.report import readme, sources
from chip.types import ChipError

ROOT = Path(__file__).parents[2]
ALL = (ROOT / "README.md", ROOT / "results/h200/findings.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = [p for p in ALL if readme.MARKED.search(p.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_are_not_stale(page):
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    assert readme.filled(text, ROOT) == text, f"{name} is stale: python -m chip.show.report.readme {name}"


def test_every_view_has_a_table(everything):
    found = everything
    for view in readme.VIEWS:
        lines = readme.table(found, view).splitlines()
        assert len(lines) > 2, view
        assert len({line.count("|") for line in lines}) == 1
    row = next(line for line in readme.table(found, "ceilings").splitlines() if "hbm_copy |" in line)
    measured = gpus.read_profile(ROOT / "results" / "h200" / "calibration-1.json").ceilings["hbm_copy"].value
    peak = gpus.spec("h200").ceilings["hbm"].value
    assert row == f"| hbm_copy | {measured / 1e12:.3g} TB/s | {peak / 1e12:.3g} TB/s | {100 * measured / peak:.1f} % |"
    assert readme.table(found, "ceilings").count("| hbm_copy |") == 1, "of one calibration"
    run = r"^\| tinyllama-1.1b \| hf-graph \| 1 \| 128 \| 5 \| [\d.]+ \| [\d.]+ ms \|"
    assert re.search(run, readme.table(found, "runs"), re.MULTILINE)


def test_a_ladder_is_climbed(tmp_path):
    found = sources.gather([samples.write_all(tmp_path)])
    first, *_, last, cublas = readme.table(found, "hgemm-ladder").splitlines()[2:]
    assert first == "| 1_naive | fp16 | 6,872 | 1.0 % | 40.0 % | - | - |"
    assert last == "| 5_wgmma | fp16 | 670,434 | 97.6 % | 40.0 % | 1.46x | 97.56x |"
    assert cublas == "| cuBLAS | fp16 | 687,195 | 100.0 % | - | - | 100.00x |"
    (product,) = readme.table(found, "hgemm-products").splitlines()[2:]
    assert product.startswith("| 4096x4096x4096 | fp16 | 687 TFLOP/s | 6.87 TFLOP/s, 1.0 % |")
    assert product.endswith("| 670 TFLOP/s, 97.6 % | 0.976x |")


def test_kernels_are_told_by_length(tmp_path):
    table = readme.table(sources.gather([ROOT / "results" / "h200" / "kernels"]), "kernel-lengths").splitlines()
    shapes = [line.split(" | ")[0].removeprefix("| ") for line in table[2:]]
    assert shapes == [*(f"{(256 << 20) // (2 * n)}x{n}" for n in (256 << i for i in range(9))), "2048x1024"]
    assert {line.count(" us, ") for line in table[2:]} == {3}
    assert any(line.endswith("x, unclear |") for line in table), "what is not clearly faster says so"


def test_a_page_is_filled_and_found_stale(tmp_path, monkeypatch, capsys):
    samples.write_all(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- summary: replay of results -->\n| old |\n<!-- end of summary -->\nafter\n")
    assert readme.main(["page.md", "--check"]) == 1
    assert readme.main(["page.md"]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- summary: replay of results -->\n| step | whole |")
    assert text.endswith("|\n<!-- end of summary -->\nafter\n")
    assert "old" not in text
    assert readme.main(["page.md", "--check"]) == 0
    assert capsys.readouterr().out == "page.md: stale\npage.md: written\n"
    page.write_text("<!-- summary: nothing of results -->\n<!-- end of summary -->\n")
    assert readme.main(["page.md"]) == 2
    assert "no table 'nothing' for a page; there are ceilings" in capsys.readouterr().err


def test_a_table_without_rows_is_an_error(tmp_path):
    samples.write_runs(tmp_path / "runs.json", samples.a_run())
    with pytest.raises(ChipError, match="nothing for the table 'kernels'"):
        readme.table(sources.gather([tmp_path]), "kernels")
