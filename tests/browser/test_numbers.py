"""No number on a page that is not in the JSON behind it: every number that is shown is a value of the answer, in
another unit or with fewer digits. Ticks of axes and what a user typed are no figures."""

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import combinations_with_replacement

import pytest
from test_explorer import QUICK, settled

pytest_plugins = ["browsing"]
SHOWN = """(selector) => {
  const skipped = ".tick, .axis, code, select, input, .roof, .visually-hidden, [hidden], .side";
  return [...document.querySelectorAll(selector)].map((root) => {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
    while (walk.nextNode()) {
      if (!walk.currentNode.parentElement.closest(skipped)) found.push(walk.currentNode.data);
    }
    return found.join(" ");
  });
}"""
NUMBER = re.compile(r"(?<![\w.])\d[\d\u202f]*(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\w)")
SCALES = [10.0**n for n in range(-15, 16)] + [1024.0**-n for n in range(1, 5)]
DIGITS = (1, 2, 3, 4, 5)


def inside(value):
    """Every number and every text of a JSON value; a list also counts its items."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        found = [inside(v) for v in value]
        return [len(value), *(n for numbers, _ in found for n in numbers)], [t for _, texts in found for t in texts]
    if isinstance(value, str):
        return [], [value, value[:10]]  # a time is shown as its day
    return ([abs(value)] if value is not None and not isinstance(value, bool) else []), []


def rounded(value, scale):
    """All that a value may look like in a unit."""
    scaled = value * scale
    up = scaled * (1 + 1e-12)  # JavaScript rounds a half up, Python to even
    out = {float(f"{v:.{n}g}") for n in DIGITS for v in (scaled, up)}
    return out | {round(scaled, n) for n in (0, 1)} if 0.01 <= scale <= 100 else out


def is_rounded(shown, values):
    """Whether one of these values, which rise, may look so. Only those near enough in a unit are rounded."""
    if not shown:
        return 0 in values
    digits, power = f"{shown:.9e}".split("e")
    last = int(power) - len(digits.rstrip("0.").replace(".", "")) + 1  # the place of the last digit that counts
    off = 0.51 * 10.0**last
    for scale in SCALES:
        start, end = bisect_left(values, (shown - off) / scale), bisect_right(values, (shown + off) / scale)
        if any(shown in rounded(value, scale) for value in values[start:end]):
            return True
    return False


def unfounded(text, answer, *known):
    """Numbers of a text that stand in no part of the answer; `known` are those that a page may say of itself."""
    numbers, texts = inside(answer)
    for name in sorted({t for t in texts if re.search(r"\d", t)}, key=len, reverse=True):
        if name in text:  # and is not a part of a longer number
            text = re.sub(rf"(?<![\d\u202f]){re.escape(name)}(?![\d\u202f])", " ", text)
    shown = {word: float(word.replace("\u202f", "")) for word in NUMBER.findall(text)}
    values = sorted(set(numbers))
    return [word for word, value in shown.items() if value not in known and not is_rounded(value, values)]


def asked(page, explorer, path, question):
    return page.request.post(
        explorer + path, data=json.loads(page.evaluate(f"() => JSON.stringify({question})"))
    ).json()


def drawn(page):
    settled(page)
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr")
    page.wait_for_selector("#curves svg.plot")
    page.wait_for_selector("#timeline-view svg")


@pytest.fixture
def opened(look, explorer):
    return look(explorer + QUICK + "&prompt=512&beside=b200~2~fp8", ready=drawn)


LISTS = "({models: Question.known.models, gpus: Question.known.gpus})"


def test_the_check_can_fail():
    answer = {"ttft_ms": 184.2731, "interval": [174.0, 198.1], "name": "h200 141GB", "rows": [1, 2, 3]}
    assert unfounded("184 ms (174 - 198), 0.1843 s on h200 141GB: 3 rows", answer) == []
    assert unfounded("185 ms", answer) == ["185"]
    assert unfounded("200 ms, or 0", answer) == ["0"], "one digit of it is a value, nothing is none"
    assert unfounded("358.3 ms in all", answer) == ["358.3"], "a sum that the page worked out"


def test_the_ranking(opened, explorer):
    question = "(({ question, groups }) => ({ ...question, gpu: groups.at(-1) }))(Rank.asking())"
    found = asked(opened, explorer, "api/rank", question)
    rows = {(r["gpu"], str(r["tp"]), r["dtype"]): r for r in found["rows"] if "error" not in r}
    lines = opened.locator("#ranked > .scroll tbody tr").all()
    texts = opened.evaluate(SHOWN, "#ranked > .scroll tbody tr")
    assert len(texts) == 10
    for line, text in zip(lines, texts, strict=True):
        row = rows[tuple(line.get_attribute(f"data-{key}") for key in ("gpu", "tp", "dtype"))]
        assert unfounded(text, row, 1) == [], text
    lists = opened.evaluate(f"() => {LISTS}")
    (claim,) = opened.evaluate(SHOWN, "#claim")
    counts = {key: value for key, value in found.items() if key != "rows"}
    assert unfounded(claim, [counts, found["rows"][0], lists["gpus"]]) == [], claim
    for text in opened.evaluate(SHOWN, "#ranked .tools, #ranked > details > summary"):
        assert unfounded(text, counts, 10) == [], text


def test_the_configurations(opened, explorer):
    found = asked(opened, explorer, "api/compare", "Question.comparison()")
    lists = opened.evaluate(f"() => {LISTS}")
    titles = [g["title"] for g in lists["gpus"]]
    for text in opened.evaluate(SHOWN, "#answer section"):
        assert unfounded(text, [found, titles], 90, 1) == [], text[:60]
    cards = opened.evaluate(SHOWN, "#answer .metric")
    shown = ("breakdown", "memory")
    short = [{k: v for k, v in p.items() if k not in shown} for p in found["predictions"]]
    ratios = [{k: a[k] for k in ("ratio", "tie")} for a in found["against_first"]]
    assert len(cards) == 5
    for text in cards:
        assert unfounded(text, [short, ratios, titles]) == [], text


def test_the_curves_tell_their_rows(opened, explorer):
    found = asked(
        opened,
        explorer,
        "api/sweep",
        """(() => {
      const { beside: _, ...rest } = Question.question(Question.configurations()[0]);
      return { ...rest, batch: [...Array(11).keys()].map((n) => 2 ** n) };
    })()""",
    )
    plot = opened.locator("#curves svg.plot[aria-label*='Tokens/s of a user']")
    plot.focus()
    told = 0
    for _ in range(22 + len(found["measured"])):
        plot.press("ArrowRight")
        text = plot.locator("xpath=following-sibling::*").inner_text()
        batch = int(re.search(r"batch\s+([\d\u202f]+)", text)[1].replace("\u202f", ""))
        if "B200" in text:
            continue
        rows = found["measured"] if "measured" in text else found["rows"]
        texts = opened.evaluate("() => Question.known.gpus.map((g) => g.title)")
        assert any(not unfounded(text, [r, texts]) for r in rows if r["batch"] == batch), text
        told += 1
    assert told == 11 + len(found["measured"])


def test_traffic_and_timeline(opened, explorer):
    step = asked(
        opened, explorer, "api/timeline", "{...Question.question(Question.configurations()[0]), phase: 'decode'}"
    )
    (text,) = opened.evaluate(SHOWN, "#timeline-view .lead")
    assert unfounded(text, {k: v for k, v in step.items() if k not in ("events", "chrome")}) == [], text
    opened.locator("#traffic").scroll_into_view_if_needed()
    opened.wait_for_selector("#traffic[aria-busy=false] svg.plot")
    found = asked(
        opened,
        explorer,
        "api/traffic",
        """(() => {
      const { batch: _, ...rest } = Question.question(Question.configurations()[0]);
      return { ...rest, workload: "poisson", limits: Question.limits() };
    })()""",
    )
    (text,) = opened.evaluate(SHOWN, "#traffic-view")
    told = {k: v for k, v in found.items() if k != "timeline"}
    assert unfounded(text, told, 50, 90, 99, 0) == [], text


SECTIONS = {
    "overview": ("headlines", "sources", "spreads"), "calibration": ("ceilings", "curves", "headlines"),
    "kernels": ("kernels", "headlines"), "replay": ("replays", "replay_tiers", "replay_terms", "headlines"),
    "compared": ("comparisons", "tallies", "headlines"), "operators": ("operators", "tallies", "headlines"),
    "provenance": ("sources", "tallies", "headlines"),
}  # fmt: skip


def test_the_report(look, full):
    page = look(full)
    data = json.loads(page.locator("#data").text_content())
    for section, names in SECTIONS.items():
        tables = [[dict(zip(data["tables"][n]["columns"], r)) for r in data["tables"][n]["rows"]] for n in names]
        (text,) = page.evaluate(SHOWN, f"#{section}")
        counts = [counted(rows) for rows in tables]
        assert unfounded(text, [tables, counts], 0, 1) == [], section


def counted(rows):
    """How many rows have a value, or a pair of them, in columns of few."""
    columns = {key: [str(row[key]) for row in rows] for key in (rows[0] if rows else ())}
    few = [key for key, values in columns.items() if len(set(values)) <= 12]
    threes = combinations_with_replacement(few, 3)
    return sorted({n for of in threes for n in Counter(zip(*(columns[key] for key in of))).values()})
