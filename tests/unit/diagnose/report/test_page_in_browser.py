"""The page in a real browser: no complaint, nothing leaves it, it can be used with keys, on a phone, in the dark and on paper.

RANKSCOPE_PICTURES=DIR keeps what it looks like.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import builders
import pytest
from builders import Job, build
from hostile import hostile
from reported import of
from testkit import chromium, pictures

from rankscope.diagnose.face.report.render import render

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="needs chromium (scripts/setup --lab)")
PICTURES = os.environ.get("RANKSCOPE_PICTURES")
CASES = {
    "fault": builders.hogged(3, 0.08, onset=0.4, hosts=2),
    "hang": builders.stopped(5),
    "healthy": Job(),
    "alone": Job(ranks=1),
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, job in CASES.items():
        (folder / f"{name}.html").write_text(render(of(build(job))), encoding="utf-8")
    (folder / "hostile.html").write_text(render(of(hostile(Job()))), encoding="utf-8")
    (folder / "hostile-hang.html").write_text(render(of(hostile(builders.stopped(3)))), encoding="utf-8")
    large = builders.slow_python(700, 0.08, ranks=1024, hosts=128, steps=8, window_s=3.0)
    (folder / "large.html").write_text(render(of(build(large))), encoding="utf-8")
    return {place.stem: place for place in folder.iterdir()}


def keep(page: chromium.Page, name: str) -> None:
    if PICTURES:
        width, height = (int(page.value(f"document.documentElement.scroll{side}")) for side in ("Width", "Height"))
        page.size(width, min(height, 8000))
        page.picture(Path(PICTURES) / f"{name}.png")


@pytest.mark.parametrize("name", [*CASES, "hostile", "hostile-hang", "large"])
@pytest.mark.parametrize("how", ["desktop", "phone", "dark", "print"])
def test_the_sentence_is_seen_at_once_and_nothing_is_complained_of(
    page: chromium.Page, places: dict[str, Path], name: str, how: str
) -> None:
    page.troubles.clear()
    page.size(*((390, 844, True) if how == "phone" else (1200, 900, False)))
    page.scheme("dark" if how == "dark" else "light", "print" if how == "print" else "screen")
    page.open(places[name])
    assert len(page.text("#verdict")) > 20
    top, bottom = page.value("(b => [b.top, b.bottom])(document.querySelector('#verdict').getBoundingClientRect())")
    assert 0 <= top < bottom
    if not name.startswith("hostile"):
        assert bottom <= 844, "the sentence is on the first screen"
    width = page.value("document.documentElement.clientWidth")
    assert page.value("document.documentElement.scrollWidth") <= width, "only charts scroll sideways"
    assert page.value("document.title") != "owned"
    assert page.troubles == []
    keep(page, f"{name}-{how}")


def test_the_pictures_of_the_readme_are_made_from_a_page(places: dict[str, Path], tmp_path: Path) -> None:
    assert pictures.main([str(places["fault"]), str(tmp_path)]) == 0
    light, dark = ((tmp_path / f"fault-{scheme}.png").read_bytes() for scheme in ("light", "dark"))
    assert light != dark and all(content.startswith(b"\x89PNG") and len(content) < 300_000 for content in (light, dark))
    assert pictures.main([]) == 64


def test_one_key_switches_the_heat_map_to_lost_time_and_the_address_remembers(
    page: chromium.Page, places: dict[str, Path]
) -> None:
    page.size(1200, 900)
    page.open(places["fault"])
    shares = page.text("#heat-map")
    page.press("m")
    assert page.value("document.querySelector('input[value=lost]').checked")
    assert page.text("#heat-map") != shares and "Milliseconds per step more" in page.text("#heat-hint")
    assert "measure=lost" in page.value("location.hash")
    page.open(places["fault"], "#measure=lost&fold=hosts")
    assert "Milliseconds per step more" in page.text("#heat-hint")
    assert page.value("[...document.querySelectorAll('.heat thead th')].map(e => e.innerText)") == [
        "3",
        "node-0 (3)",
        "node-1 (4)",
    ]
    page.value("document.querySelector('input[value=share]').click()")
    assert "Of each step" in page.text("#heat-hint")


def test_a_large_fleet_is_folded_and_the_culprit_stands_first(page: chromium.Page, places: dict[str, Path]) -> None:
    page.scheme("light")
    page.open(places["large"])
    heads = page.value("[...document.querySelectorAll('.heat thead th')].map(e => e.innerText)")
    assert heads[0] == "700" and len(heads) == 48
    assert "Show more columns" in page.text("#heat-map")
    page.value("document.querySelector('.heat thead button').click()")
    assert len(page.value("[...document.querySelectorAll('.heat thead button')].map(e => e.innerText)")) < 47
    page.press("f")
    heads = page.value("[...document.querySelectorAll('.heat thead th')].map(e => e.innerText)")
    assert heads[0] == "700" and len(heads) == 2  # beside it all others, as one role


def test_all_charts_can_be_read_with_keys_alone(page: chromium.Page, places: dict[str, Path]) -> None:
    page.open(places["fault"])
    page.value("document.querySelector('.heat td[tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    assert page.text("#heat-said").startswith("rank 1 on node-0 · ")
    page.value("document.querySelector('svg[data-track=\"0\"]').focus()")
    page.press("ArrowRight")
    assert page.text("#steps-said").startswith("step 1: 0.")
    page.value("document.querySelector('#flame').focus()")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.press(key)
    assert "per step" in page.text("#flame-said")
    page.press("Escape")
    assert page.value("document.querySelectorAll('.flame').length") > 10


def test_hostile_names_are_text_in_every_chart(page: chromium.Page, places: dict[str, Path]) -> None:
    page.troubles.clear()
    page.open(places["hostile"])
    assert "<img src=x onerror=alert(1)>" in page.value("document.body.textContent")
    assert (
        page.value(
            "document.querySelectorAll('img, iframe, object, embed, a, [onerror], [onload], [style*=display]').length"
        )
        == 0
    )
    assert page.value("document.querySelectorAll('script').length") == 2
    for selector in (".heat td", ".flame"):
        page.value(
            f"document.querySelectorAll('{selector}').forEach(e => e.dispatchEvent(new PointerEvent('pointerenter')))"
        )
    assert page.value("document.title") != "owned"
    assert page.troubles == []
