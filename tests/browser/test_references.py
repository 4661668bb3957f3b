"""The comparison of pictures: it finds a changed layout and a changed colour, and not other smoothing of letters."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageFilter
from playwright.sync_api import Browser, Page

import django_zklock
from tests.browser import references
from tests.browser.visitor import WIDE

STYLES = Path(django_zklock.__file__).parent / "static" / "django_zklock" / "admin.css"
ROW = """
<tr><td>invoice:{}</td><td><span class="zklock-badge zklock-is-held">held</span></td><td>task billing.tasks.bill</td>
<td><span class="zklock-badge zklock-is-contended">3</span></td></tr>
"""
PAGE = f"""
<!doctype html><html lang="en"><title>Locks</title>
<body class="zklock" style="background: white; font-family: sans-serif; font-size: 14px">
<table style="width: 100%; text-align: left">{"".join(map(ROW.format, range(9)))}</table>
"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page with badges of the list."""
    page = browser.new_page(viewport=WIDE)
    page.set_content(PAGE)
    page.add_style_tag(content=STYLES.read_text(encoding="utf-8"))
    yield page
    page.close()


@pytest.fixture
def kept(page: Page, tmp_path: Path) -> Path:
    """Make the picture of the page a reference."""
    file = tmp_path / "references" / "page.png"
    references.save(page.screenshot(), file)
    return file


def test_compare__same(page: Page, kept: Path) -> None:
    """The same page has no difference."""
    assert references.compare(page.screenshot(), kept) == ""


@pytest.mark.parametrize("radius", [0.3, 0.5, 0.7])
def test_compare__smoothing(page: Page, kept: Path, radius: float) -> None:
    """Letters with softer edges make no difference."""
    with Image.open(io.BytesIO(page.screenshot())) as image:
        softened = io.BytesIO()
        image.convert("RGB").filter(ImageFilter.GaussianBlur(radius)).save(softened, "PNG")
    assert references.compare(softened.getvalue(), kept) == ""


@pytest.mark.parametrize(
    "change",
    [
        "document.querySelector('.zklock-is-contended').remove()",
        "document.querySelector('.zklock-is-contended').className = 'zklock-badge zklock-is-held'",
        "document.querySelector('td').style.paddingTop = '4px'",
        "document.querySelector('td').style.width = '40%'",
        "document.querySelector('tr').remove()",
        "document.querySelectorAll('.zklock-badge').forEach(each => { each.style.color = 'transparent' })",
    ],
    ids=["badge gone", "badge of another colour", "lower", "wider", "row gone", "text gone"],
)
def test_compare__changed(page: Page, kept: Path, change: str) -> None:
    """A change of the layout, of a colour or of the texts is a difference."""
    page.evaluate(change)
    assert "points differ from page.png" in references.compare(page.screenshot(), kept)


def test_compare__size(page: Page, kept: Path) -> None:
    """So is another size, and a reference that does not exist."""
    page.set_viewport_size({"width": 768, "height": 640})
    assert "page.png has (320, 160) points, the picture (192, 160)" in references.compare(page.screenshot(), kept)
    assert references.compare(page.screenshot(), kept.with_name("new.png")) == "there is no new.png"
