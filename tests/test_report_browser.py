"""The page as a browser lays it out: wide and narrow, light and dark (make test-browser)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from converter.report.html.page import page
from converter.report.html.several import page_of_several
from converter.report.several import Several, validate_several
from tests.browser import CHROMIUM, Browser
from tests.reports import RUNS, document
from tests.support import DRAFTERS, SAMPLE, TARGET, request
from tests.test_report_html import HOSTILE, filled

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the path")]

# Texts whose colour stands out by less than AA asks for (4.5 to 1; sizes here are never "large").
FAINT = """
(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; };
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c) return c; } return [255, 255, 255]; };
  const faint = [];
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const svg = e instanceof SVGElement;
    if (svg && !e.getClientRects().length || e.closest('title, desc')) continue;
    const ink = light(parse(svg ? getComputedStyle(e).fill : getComputedStyle(e).color)), paper = light(ground(e));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) faint.push(e.textContent.slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return faint;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("REPORT_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(exist_ok=True)
    return folder


def text_of(name: str) -> str:
    if name == "several":
        return page_of_several(several().as_json())
    return page(filled(document("found"), HOSTILE * 3) if name == "hostile" else document(name))


def several() -> Several:
    """In order, wired otherwise than the sample says, of no use to most engines, unreadable."""
    given = [(DRAFTERS / "a_plain", None), (DRAFTERS / "g_aux024", (2, 4, 6)), (DRAFTERS / "b_nbr", None),
             (DRAFTERS / "nowhere", None)]  # fmt: skip
    return validate_several([request(path, target=TARGET, sample=SAMPLE, aux=aux) for path, aux in given])


@pytest.mark.parametrize("name", [*RUNS, "hostile", "several"])
def test_pages_fit_in_every_width_and_theme(name: str, browser: Browser, shots: Path) -> None:
    file = shots / f"{name}.html"
    file.write_text(text_of(name))
    grounds = set()
    for width in (1280, 360):
        for theme in ("light", "dark"):
            browser.show(file, width, theme)
            assert browser.requests == [file.resolve().as_uri()]  # nothing else is loaded
            browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.value(FAINT) == []
            grounds.add(browser.value("getComputedStyle(document.body).backgroundColor"))
            browser.value("document.querySelectorAll('details').forEach(d => d.open = false)")
            browser.photograph(shots / f"{name}-{width}-{theme}.png")
    assert len(grounds) == 2
