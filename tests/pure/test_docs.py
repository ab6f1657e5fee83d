"""The docs are tests: every command is documented, every command line parses, every transcript is what comes out.

A ```console block holds a transcript: `$ command` (`> ` goes on with it) and its output. Those that need no device are
run in a shell, in order, in a folder of their own that has nothing but results/; what they print on stdout must be what
the page says. The errors of `chip fit` are those of the bundled tables, other figures come from `doc_figures`. After a
change of output, `python tests/pure/test_docs.py [PAGE ...]` writes all of it anew.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import doc_figures  # noqa: E402
from folding import each  # noqa: E402

from chip import __version__  # noqa: E402
from chip.hardware import gpus, points  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.show.cli import fit  # noqa: E402
from chip.show.report import readme  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*/*.md")])
SAFE = ("predict", "estimate", "list", "show")
ANSWERS = ("explain", *SAFE, "simulate", "validate")  # of a transcript
SHELL = ("", "sh", "bash", "shell", "console")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^\$ (.*(?:\n> .*)*)\n?((?:(?!\$ ).*\n?)*)", re.MULTILINE)
PLACEHOLDER = re.compile(r"<[a-z][a-z -]*>|\.\.\.|…")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # of pictures too
ERRORS = re.compile(
    r"(?<=^```text\n)operator +implementation +(?:dtype +)?context +shapes +median error .*?(?=^```$)",
    re.MULTILINE | re.DOTALL,
)
# a command line that needs no shell: the command, errors too, only the first lines
MANY_SHAPES = 200
PLAIN = re.compile(r"(chip [^|;&<>$`*?~\n\\]*?)( 2>&1)?(?: \| head -(\d+))?")
TODO = "TODO" + "-H200"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(text: str) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", text)


# -- command lines ----------------------------------------------------------------------------------------------------
def command_lines(text: str) -> Iterator[tuple[str, list[str]]]:
    """(language of the block, words from `chip` to the next pipe) of every `chip ...` that is not shown to fail."""
    for language, block in FENCE.findall(text):
        if language not in SHELL:
            continue
        for line in re.sub(r"\\\n", " ", block).splitlines():
            line = line.removeprefix("$ ").removeprefix("> ")
            for part in re.findall(r"(?:^|[|;] *|&& *)(chip [a-z-].*)", line):
                if not PLACEHOLDER.search(part) and not re.match(r"chip [a-z]+:", part) and "2>&1" not in part:
                    yield language, words_of(part)


def words_of(part: str) -> list[str]:
    words = []
    for word in shlex.split(part, comments=True):
        if word in ("|", "<", "&&", ";", "&") or re.match(r"\d?>", word):
            break
        words.append(word.removesuffix(";"))
    return words


def all_lines(*, run: bool = False) -> list[tuple[str, str]]:
    """(page, command line) of all pages; with `run` those that any machine can run and no transcript has run."""
    found = {}
    for page in PAGES:
        for language, words in command_lines(page.read_text(encoding="utf-8")):
            if not run or (language != "console" and is_self_contained(words[1:])):
                found[name_of(page), shlex.join(words)] = None
    return list(found)


def is_self_contained(words: list[str]) -> bool:
    """Safe to run anywhere: no file, no stdin, no hub id, no torch."""
    needs = ("-", "--trace")
    return words[0] in SAFE and not any(w in needs or "/" in w or w.endswith((".json", ".jsonl")) for w in words[1:])


@each(all_lines())
def test_command_line_parses(page: str, line: str) -> None:
    name, *words = shlex.split(line)[1:]
    if name in ("--help", "--version", "-h", "-V"):
        return
    assert name in cli.commands(), f"{page}: no command {name!r}"
    cli.parser(name).parse_args(words)  # ends the test with its message where it cannot


@pytest.mark.parametrize(("page", "line"), all_lines(run=True))
def test_safe_command_line_runs(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(line)[1:]) == 0, f"{page}: {capsys.readouterr().err}"


# -- transcripts ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Transcript:
    command: str
    output: str
    start: int  # of the output, in the page
    end: int

    @property
    def shows_errors(self) -> bool:
        return "2>&1" in self.command

    def runnable(self, folder: Path) -> bool:
        """Whether it only predicts or prepares a file for it, and every file it reads is there."""
        commands = re.findall(r"(?:^|[|;] *|&& *)chip ([a-z]+)", self.command, re.MULTILINE)
        if not commands and not self.command.startswith(("cat ", "echo ", "mkdir ", "sed ", "python -c")):
            return False
        made = re.findall(r">\s*([\w./-]+)", self.command)
        read = [w for w in re.findall(r"[\w./-]+\.(?:jsonl?|csv)\b", self.command) if w not in made]
        there = self.shows_errors or not commands or all((folder / w).exists() for w in read)
        return all(c in ANSWERS for c in commands) and there and "--trace" not in self.command


def transcripts(page: Path) -> list[Transcript]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        if fence[1] != "console":
            continue
        for m in PROMPT.finditer(fence[2]):
            at = fence.start(2)
            found.append(Transcript(m[1].replace("\n> ", "\n"), m[2], at + m.start(2), at + m.end(2)))
    return found


def run_page(page: Path, folder: Path) -> Iterator[tuple[Transcript, int, str]]:
    """Every runnable transcript of a page with its exit code and what it really prints."""
    tools = folder / "tools"
    tools.mkdir()
    for tool, call in (("chip", "-m chip"), ("python", "")):
        (tools / tool).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (tools / tool).chmod(0o755)
    path = os.pathsep.join((str(tools), os.environ.get("PATH", "")))
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"}
    work = folder / "work"
    work.mkdir()
    (work / "results").symlink_to(ROOT / "results")
    for t in transcripts(page):
        if t.runnable(work):
            plain = PLAIN.fullmatch(t.command)
            code, said = run_here(*plain.groups(), work) if plain else run_in_a_shell(t.command, work, env)
            yield t, code, "".join(f"{line.rstrip()}\n" for line in said.splitlines())


def run_in_a_shell(command: str, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout


def run_here(command: str, errors_too: str | None, first: str | None, folder: Path) -> tuple[int, str]:
    """In this process: to start one for each takes longer than the answers."""
    said = io.StringIO()
    errors = said if errors_too else io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(errors):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        try:
            code = cli.main(shlex.split(command)[1:])
        except SystemExit as e:  # of argparse
            code = int(e.code or 0)
    return code, "".join(said.getvalue().splitlines(keepends=True)[: int(first) if first else None])


@pytest.mark.skipif(not shutil.which("sh") or os.name == "nt", reason="transcripts are those of a POSIX shell")
@pytest.mark.parametrize("page", [p for p in PAGES if transcripts(p)], ids=name_of)
def test_transcripts_are_what_comes_out(page: Path, tmp_path: Path) -> None:
    for t, code, output in run_page(page, tmp_path):
        assert code == 0 or t.shows_errors, f"{name_of(page)}: `{t.command}` ends with {code}"
        assert output == t.output, f"{name_of(page)}: `{t.command}`; run `python {name_of(Path(__file__))}`"
    for made, shown in pictures(tmp_path):
        assert made.read_bytes() == shown.read_bytes(), f"{name_of(shown)}; run `python {name_of(Path(__file__))}`"


def pictures(folder: Path) -> list[tuple[Path, Path]]:
    """Those that the transcripts of a page have drawn, and where it shows them."""
    return [(made, ROOT / "docs" / "img" / made.name) for made in sorted((folder / "work").glob("*.svg"))]


def rewrite(page: Path) -> bool:
    """Put what really comes out into the page; True where that changed it."""
    text = old = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for t, _, output in reversed(list(run_page(page, Path(folder)))):
            text = text[: t.start] + output + text[t.end :]
        for made, shown in pictures(Path(folder)):
            shutil.copy(made, shown)
    text = doc_figures.written(readme.filled(ERRORS.sub(lambda _: bundled_errors(), text), ROOT))
    page.write_text(text, encoding="utf-8")
    return text != old


# -- what the bundled points and records say of themselves -------------------------------------------------------------
def bundled_points() -> list[points.PointGroup]:
    folder = gpus.find("h200").points[0]
    return [g for kind in points.kinds(folder) for g in points.read(folder / f"{kind}{points.SUFFIX}").groups]


def bundled_errors() -> str:
    """Errors of points predicted from all others, as `chip fit` prints them, of groups with many shapes."""
    head, line, *rows = fit.render(bundled_points()).splitlines()
    at = head.index("shapes")
    return "\n".join([head, line, *(row for row in rows if int(row[at:].split()[0]) >= MANY_SHAPES)]) + "\n"


def test_errors_are_those_of_the_bundled_points() -> None:
    assert ERRORS.findall((ROOT / "docs" / "fit.md").read_text(encoding="utf-8")) == [bundled_errors()]


def test_lines_of_a_file_of_points_are_lines_of_it() -> None:
    shown = re.findall(r"^```csv\n(.*?)^```$", (ROOT / "docs" / "fit.md").read_text(encoding="utf-8"), re.M | re.S)
    lines = (gpus.find("h200").points[0] / "linear.csv").read_text(encoding="utf-8").splitlines()
    assert shown
    for block in shown:
        assert set(block.splitlines()) <= set(lines), "docs/fit.md shows lines that linear.csv does not have"


# -- completeness -----------------------------------------------------------------------------------------------------
@each(cli.commands())
def test_command_is_documented(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\bchip {name}\b", readme), f"README.md does not show `chip {name}`"
    headings = [h for p in (ROOT / "docs").glob("*.md") for h in re.findall(r"^#+ .*", prose(p.read_text()), re.M)]
    assert any(re.search(rf"\bchip {name}\b", h) for h in headings), f"no section on `chip {name}` in docs/"


@each(cli.commands())
def test_every_option_is_documented(name: str) -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in PAGES)
    options = [s for s in cli.parser(name)._option_string_actions if s.startswith("--") and s != "--help"]
    missing = [s for s in options if not re.search(rf"(?<![\w-]){s}(?![\w-])", text)]
    assert not missing, f"chip {name}: {', '.join(missing)} in no page"


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


@each(PAGES)
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name_of(page)}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)}: {link}: no such heading"


@each(PAGES)
def test_no_absolute_paths(page: Path) -> None:
    found = re.findall(r"(?<![\w.:/])/(?:home|root|tmp|work|mnt|Users)/\S*", page.read_text(encoding="utf-8"))
    assert not found, f"{name_of(page)}: {found[0]} is a path of one machine"


@pytest.mark.parametrize(
    ("page", "says"), [("CHANGELOG.md", r"^## \[([\d.]+)\]"), ("CITATION.cff", r"^version: ([\d.]+)$")]
)
def test_version_is_that_of_the_package(page: str, says: str) -> None:
    found = re.search(says, (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == __version__, page


def test_nothing_left_to_fill_in() -> None:
    left = [name_of(p) for p in PAGES if TODO in p.read_text(encoding="utf-8")]
    assert not left, f"{TODO} stands in {', '.join(left)}"


def main(names: list[str]) -> int:
    """What a page says in another form than what is computed is named; all other pages are written."""
    wrong = 0
    for page in [Path(name).resolve() for name in names] or PAGES:
        try:
            if rewrite(page):
                print(f"rewrote {name_of(page)}")
        except doc_figures.StaleError as e:
            wrong += 1
            print(f"{name_of(page)}: {e}", file=sys.stderr)
    return 1 if wrong else 0


def test_every_page_begins_with_whom_it_is_for() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        first = next(line for line in page.read_text(encoding="utf-8").splitlines()[1:] if line.strip())
        assert first.startswith("For "), page.name


def test_the_front_page_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
