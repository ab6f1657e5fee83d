"""For those who do not see well or use no mouse: names, labels, contrast and order, on both pages and themes."""

import pytest
from reports import unfold
from test_explorer import QUICK, settled

pytest_plugins = ["browsing"]
COMPARED = QUICK + "&beside=h100,a10"
# Violations as text: controls without a name, ids used twice, headings that skip a level, text that is too faint.
CHECK = """() => {
  const out = [], shown = (e) => e.checkVisibility({visibilityProperty: true});
  const name = (e) => (e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.closest('label')?.textContent
    || (e.matches('input, select, textarea') ? '' : e.textContent) || '').trim();
  for (const e of document.querySelectorAll('button, a[href], input, select, textarea, summary, [tabindex="0"]'))
    if (shown(e) && !name(e)) out.push('no name: ' + e.outerHTML.slice(0, 120));
  const ids = new Set();
  for (const e of document.querySelectorAll('[id]'))
    ids.has(e.id) ? out.push('id twice: ' + e.id) : ids.add(e.id);
  for (const e of document.querySelectorAll('[aria-labelledby], [aria-describedby], [aria-controls], label[for]'))
    for (const key of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for'])
      if (e.getAttribute(key) && !document.getElementById(e.getAttribute(key))) out.push(`no ${key}: ` + e.outerHTML);
  const regions = [...document.querySelectorAll('[role=region]')].map((e) => e.getAttribute('aria-label'));
  for (const [i, name] of regions.entries()) if (regions.indexOf(name) < i) out.push('region twice: ' + name);
  let level = 0;
  for (const e of document.querySelectorAll('h1, h2, h3, h4')) {
    if (Number(e.tagName[1]) > level + 1) out.push('heading skips a level: ' + e.textContent);
    level = Number(e.tagName[1]);
  }
  for (const e of document.querySelectorAll('svg.plot, [role=img]'))
    if (!e.getAttribute('aria-label')) out.push('picture without a name: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('table')) if (!e.querySelector('th')) out.push('table without headings');
  const channels = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, k, i) => {
    const v = c[i] / 255;
    return sum + k * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const c = channels(getComputedStyle(at).backgroundColor);
      if (c.length < 4 || c[3] > 0.99) return c;
    }
    return [255, 255, 255];
  };
  for (const e of document.querySelectorAll('main *, header *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !shown(e) || e.closest('svg, option, :disabled, .visually-hidden')) continue;
    const [a, b] = [light(channels(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.push(`contrast ${ratio.toFixed(2)}: ${e.className} ${e.textContent.slice(0, 40)}`);
  }
  return [...new Set(out)];
}"""


def drawn(page):
    """All that the explorer shows, traffic included, which is asked for when it is looked at."""
    settled(page)
    page.wait_for_selector("#ranking[aria-busy=false] tbody tr", timeout=60_000)
    page.wait_for_selector("#timeline-view svg")
    page.wait_for_selector("#curves svg.plot")
    page.locator("#traffic-view").scroll_into_view_if_needed()
    page.wait_for_selector("#traffic[aria-busy=false] svg.plot")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_explorer(look, explorer, theme, width):
    assert look(explorer + COMPARED, width, theme, ready=drawn).evaluate(CHECK) == []


def test_the_check_can_fail(visit, part):
    page = visit(part)
    page.evaluate("""() => {
        const faint = document.createElement('p'), mute = document.createElement('button');
        faint.textContent = 'faint';
        faint.style.color = '#ccc';
        document.querySelector('main').append(faint, mute);
    }""")
    found = page.evaluate(CHECK)
    assert any(f.startswith("no name: <button") for f in found)
    assert any(f.startswith("contrast 1.") and "faint" in f for f in found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_report(look, full, theme):
    assert look(full, theme=theme, ready=unfold).evaluate(CHECK) == []
