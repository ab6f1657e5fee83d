"""The model box: typing narrows the list, the keyboard is enough, and a hub id is asked as on the command line."""

import shutil

import pytest
from playwright.sync_api import expect
from test_explorer import QUICK, answer, commands, says, settled, values  # noqa: F401
from test_explorer_page import LAYOUTS, fits

from chip.decoders import hub, library

pytest_plugins = ["browsing"]


@pytest.fixture
def offline(monkeypatch):
    """The hub is not asked, whatever this machine can reach."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.answers.cache_clear()
    yield
    hub.answers.cache_clear()
    library.find.cache_clear()


def box(page, width):
    if width < 800:
        page.get_by_role("button", name="Change the question").click()
    return page.get_by_role("combobox", name="Model: type to search")


@pytest.mark.parametrize("width", LAYOUTS)
def test_typing_narrows_the_list_and_keys_choose(visit, explorer, width):
    page = visit(explorer + QUICK, width=width)
    settled(page)
    typed = box(page, width)
    assert typed.input_value().startswith("llama-3.1-8b")
    typed.fill("QWEN3 8b")
    options = page.locator("#model-name-list [role=option]")
    found = [m for m in library.names() if "qwen3" in m and "8b" in m]
    expect(options).to_have_count(len(found))
    assert sorted(o.get_attribute("data-value") for o in options.all()) == found
    typed.press("ArrowDown")
    typed.press("ArrowUp")
    first = options.nth(0).get_attribute("data-value")
    assert typed.get_attribute("aria-activedescendant") == options.nth(0).get_attribute("id")
    typed.press("Enter")
    page.wait_for_selector(f"#answer[aria-busy=false] .command:has-text('chip predict {first} ')")
    expect(page.locator("#model-name-list")).to_be_hidden()
    assert f"model={first}&" in page.url
    assert page.evaluate("document.activeElement.id") == "model-name", "the focus stays"
    fits(page, width)


def test_a_click_chooses_and_escape_leaves_all_as_it_was(visit, explorer):
    page = visit(explorer + QUICK)
    settled(page)
    typed = box(page, 1280)
    typed.fill("no such model")
    expect(page.locator("#model-name-list")).to_have_text("nothing matches")
    typed.press("Enter")
    typed.press("Escape")
    assert typed.input_value().startswith("llama-3.1-8b")
    typed.click()
    page.locator("#model-name-list [data-value=gpt2]").click()
    says(page, "chip predict gpt2 ")


def test_a_hub_id_is_asked_as_on_the_command_line(visit, explorer, offline, answer, tmp_path, monkeypatch):  # noqa: F811
    shutil.copy(library.CONFIGS / "gpt2.json", tmp_path / "config.json")
    monkeypatch.setattr(hub, "_download", lambda repo, online: tmp_path / "config.json")
    page = visit(explorer + QUICK)
    settled(page)
    typed = box(page, 1280)
    typed.fill("someone/their-model")
    typed.press("Enter")
    says(page, "chip predict someone/their-model ")
    (command,) = commands(page)
    found = answer(command)
    assert found["model"] == "someone/their-model"
    for metric in ("ttft_ms", "tpot_ms", "tokens_per_s"):
        assert values(page, metric) == [found[metric]]
    shared = visit(page.url)
    says(shared, "chip predict someone/their-model ")
    assert values(shared, "ttft_ms") == [found["ttft_ms"]]


def test_a_hub_that_does_not_answer_is_one_clear_line(visit, explorer, offline, monkeypatch):
    why = "it does not answer, and its config.json is not in the cache"
    monkeypatch.setattr(hub, "_download", lambda repo, online: why)
    page = visit(explorer + QUICK + "&model=meta-llama/Llama-3.1-8B")
    said = page.locator("#answer [role=alert]")
    expect(said).to_contain_text(f"meta-llama/Llama-3.1-8B: config.json could not be had from the hub ({why})")
    expect(said).to_contain_text("the bundled 'llama-3.1-8b' may be what you want")
    expect(page.locator("#answer .value")).to_have_count(0)
