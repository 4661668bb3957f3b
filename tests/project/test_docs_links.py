"""Links between the files of the repository lead somewhere; `make docs` checks those between the pages as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.doc_blocks import PAGES, ROOT

HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|^```\{image\} (\S+)$|\{download\}`[^`<]*<([^`>]+)>`", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z]+:")


def text_of(page: str) -> str:
    """Return the page without its blocks of code, which may have anything in brackets."""
    return re.sub(r"^(`{3,})(?!\{image).*?^\1$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and Sphinx make them."""
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def links() -> list[tuple[str, str]]:
    """Return each link within the repository, with its page."""
    return sorted(
        {(page, target) for page in PAGES for target in LINK.findall(text_of(page)) if not OUTSIDE.match(target)}
    )


@pytest.mark.parametrize(("page", "target"), links())
def test_link(page: str, target: str) -> None:
    """The file of a link exists, and has the heading."""
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    assert file.is_file()
    if anchor:
        assert anchor in anchors(text_of(str(file.resolve().relative_to(ROOT))))


@pytest.mark.parametrize("page", PAGES)
def test_pictures_and_downloads(page: str) -> None:
    """Each picture, and each file to download, exists."""
    for found in IMAGE.findall(text_of(page)):
        (target,) = filter(None, found)
        assert ((ROOT / page).parent / Path(target)).is_file()


@pytest.mark.parametrize("page", sorted(page for page in PAGES if page.startswith("docs/")))
def test_page__is_found_from_its_index(page: str) -> None:
    """The index of a part links to each of its pages, so a reader finds them by a question."""
    folder, name = page.rsplit("/", 1)
    if name == "index.md":
        return
    assert f"]({name})" in PAGES[f"{folder}/index.md"]


@pytest.mark.parametrize("page", sorted(page for page in PAGES if page.startswith("docs/") and page != "docs/index.md"))
def test_page__says_for_whom_it_is(page: str) -> None:
    """A reader knows from the first lines whether to go on."""
    heading, _, words = PAGES[page].split("\n", 2)
    assert heading.startswith("# ")
    assert words.startswith("For ")
