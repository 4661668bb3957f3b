"""The checks of a visitor: each finds its fault in a page that has this fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.visitor import NARROW, Visitor
from tests.toolbox.network.port import LOOPBACK

PAGE = """
<!doctype html>
<html lang="en">
<title>Planted</title>
<body style="margin: 0; background: white; color: black">
<a href="#content-start">Skip to main content</a>
<div id="content-start" tabindex="-1">
  <div id="content"><h1>Locks</h1>{}</div>
</div>
"""


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Return a visitor of a page without a site."""
    page = browser.new_page(viewport=NARROW)
    yield Visitor(page, f"http://{LOOPBACK}:1")
    page.close()


AUDITED = {
    "<button></button>": "no name",
    "<input>": "no name",
    '<a href="#"><img src="data:," alt=""></a>': "no name",
    '<img src="data:,">': "no alt",
    "<svg></svg>": "no role or name",
    "<table><thead><tr><th>key</th></tr></thead></table>": "no scope",
    "<h3>Queue</h3>": "heading skips a level",
    '<p id="twice"></p><p id="twice"></p>': "id given twice",
    '<label for="nothing">Reason</label>': "for refers to nothing",
    '<p style="color: #999">faint</p>': "contrast 2.8",
    '<p style="color: white; background: rgb(0 0 0 / 30%)">faint</p>': "contrast 2.",
    '<svg role="img" aria-label="bar"><text y="9" fill="#ddd">faint</text></svg>': "contrast 1.",
}
SOUND = """
<h2>Queue</h2><label for="q"><img src="data:," alt="Search"></label><input id="q">
<svg role="img" aria-label="bar"><text y="9" fill="#333">dark</text></svg>
<table><thead><tr><th scope="col">key</th></tr></thead></table><p hidden style="color: #eee">unseen</p>
"""
DAMAGED = {
    "<script>window.attacked = true</script>": "a script has run",
    "<p style='width: 400px'>wide</p>": "the page is 400 wide, the window 390",
    f"<table style='table-layout: fixed; width: 50px'><tr><td>{'x' * 20}</table>": "out of its cell",
}
UNREACHED = {
    '<button tabindex="-1">Break</button>': "not reached",
    '<a href="#" style="outline: none">Break</a>': "no focus to be seen",
}
BROKEN = {
    "<script>throw new Error('broken')</script>": "error: ",
    "<script>console.error('odd')</script>": "console: odd",
    "<img src='http://elsewhere.example/' alt=''>": "request to http://elsewhere.example/",
}


def assert_found(found: list[str], planted: Iterable[str]) -> None:
    """Assert that each fault is found once, and nothing else."""
    expected = sorted(planted)
    assert len(found) == len(expected), found
    for complaint, start in zip(sorted(found), expected, strict=True):
        assert complaint.startswith(start)


def test_audit(visitor: Visitor) -> None:
    """The audit finds each barrier, and nothing in a page without one."""
    visitor.page.set_content(PAGE.format("".join(AUDITED)))
    assert_found(visitor.audit(), AUDITED.values())
    visitor.page.set_content(PAGE.format(SOUND))
    assert visitor.audit() == []


def test_damage(visitor: Visitor) -> None:
    """A script that has run is found, and content that overflows."""
    visitor.page.set_content(PAGE.format("".join(DAMAGED)))
    assert_found(visitor.damage(), DAMAGED.values())


def test_tour(visitor: Visitor) -> None:
    """Controls that the Tab key does not reach, or that show no focus, are found."""
    visitor.page.set_content(PAGE.format("".join(UNREACHED) + '<a href="#">List</a>'))
    assert_found(visitor.tour(), UNREACHED.values())


def test_close(visitor: Visitor) -> None:
    """Errors of a page, and requests to another host, fail the test."""
    visitor.page.set_content(PAGE.format("".join(BROKEN)))
    with pytest.raises(AssertionError):
        visitor.close()
    assert_found([each for each in visitor.complaints if "net::" not in each], BROKEN.values())
