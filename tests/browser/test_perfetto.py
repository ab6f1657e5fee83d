"""The trace of a predicted step in the Perfetto UI, whose side is played here as its documentation describes it."""

import json

from playwright.sync_api import expect
from test_explorer import QUICK

pytest_plugins = ["browsing"]
# Deaf until it has loaded, as the real one: what comes before is lost.
SIDE = """<!doctype html><title>played</title><script>
const begin = () => addEventListener('message', (e) => {
  if (e.source !== opener) return;
  if (e.data === 'PING') e.source.postMessage('PONG', '*');
  else if (e.data.perfetto) {
    const {buffer, title, fileName} = e.data.perfetto;
    window.taken = {origin: e.origin, title, fileName, bytes: buffer instanceof ArrayBuffer,
      text: new TextDecoder().decode(buffer)};
  }
});
addEventListener('load', begin);
</script>"""


def opened(page, body):
    page.context.route("https://ui.perfetto.dev/**", lambda r: r.fulfill(content_type="text/html", body=body))
    page.wait_for_selector("#timeline-view svg")
    with page.expect_popup() as tab:
        page.get_by_role("button", name="Open in Perfetto").click()
    return tab.value


def test_the_trace_is_handed_over(visit, explorer):
    page = visit(explorer + QUICK)
    tab = opened(page, SIDE)
    tab.wait_for_function("window.taken")
    taken = tab.evaluate("window.taken")
    assert tab.url == "https://ui.perfetto.dev/"
    assert taken["bytes"]
    assert taken["title"] == "llama-3.1-8b on h200, vllm, decode"
    assert taken["origin"] == explorer.rstrip("/")
    expect(page.locator("#perfetto-said")).to_have_text("Handed to Perfetto.")
    asked = {"model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm", "batch": 8, "prompt": 1024, "output": 128}
    found = page.request.post(f"{explorer}api/timeline", data={**asked, "phase": "decode"}).json()
    assert json.loads(taken["text"]) == found["chrome"]
    tab.close()


def test_a_tab_that_is_closed_says_so(visit, explorer):
    page = visit(explorer + QUICK)
    tab = opened(page, "<!doctype html><title>mute</title>")
    expect(page.locator("#perfetto-said")).to_have_text("Waiting for Perfetto …")
    tab.close()
    expect(page.locator("#perfetto-said")).to_contain_text("closed before Perfetto took the trace")


def test_nothing_is_handed_to_another_site(visit, explorer):
    """A tab that went elsewhere and answers all the same gets no trace."""
    page = visit(explorer + QUICK)
    page.context.route("https://other.example/**", lambda r: r.fulfill(content_type="text/html", body=SIDE))
    tab = opened(page, "<!doctype html><script>location.replace('https://other.example/')</script>")
    tab.wait_for_url("https://other.example/")
    tab.evaluate("""() => new Promise((done) => {
        let pings = 0;
        addEventListener('message', (e) => e.data === 'PING' && ++pings === 3 && done());
    })""")
    assert tab.evaluate("window.taken") is None
    expect(page.locator("#perfetto-said")).to_have_text("Waiting for Perfetto …")
    tab.close()


def test_a_browser_that_opens_no_tab_is_told_of_the_download(visit, explorer):
    page = visit(explorer + QUICK)
    page.wait_for_selector("#timeline-view svg")
    page.evaluate("window.open = () => null")
    page.get_by_role("button", name="Open in Perfetto").click()
    expect(page.locator("#perfetto-said")).to_contain_text("Download the trace")
