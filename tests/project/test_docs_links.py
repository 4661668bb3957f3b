"""Links between the files of the repository lead somewhere; `make docs` checks those between the pages as well."""

from __future__ import annotations

import re

from scripts.shown_by import anchor
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
    return {anchor(heading) for heading in HEADING.findall(text)}


def is_there(page: str, target: str) -> bool:
    """Whether the file of a link exists, and has the heading."""
    path, _, heading = target.partition("#")
    file = ((ROOT / page).parent / path if path else ROOT / page).resolve()
    return file.is_file() and (not heading or heading in anchors(text_of(str(file.relative_to(ROOT)))))


def test_links() -> None:
    """Each link within the repository leads somewhere."""
    links = [(page, each) for page in PAGES for each in LINK.findall(text_of(page)) if not OUTSIDE.match(each)]
    assert len(links) > len(PAGES)
    assert [link for link in links if not is_there(*link)] == []


def test_links__that_lead_nowhere() -> None:
    """A file or a heading that does not exist is found."""
    assert is_there("README.md", "docs/index.md")
    assert not is_there("README.md", "docs/nothing.md")
    assert not is_there("README.md", "docs/index.md#nothing")


def test_pictures_and_downloads() -> None:
    """Each picture, and each file to download, exists."""
    targets = [(page, *filter(None, found)) for page in PAGES for found in IMAGE.findall(text_of(page))]
    assert targets
    assert [each for each in targets if not ((ROOT / each[0]).parent / each[1]).is_file()] == []


DOCS = sorted(page for page in PAGES if page.startswith("docs/"))


def test_pages__are_found_from_their_index() -> None:
    """The index of a part links to each of its pages, so a reader finds them by a question."""
    pages = [page.rsplit("/", 1) for page in DOCS if not page.endswith("/index.md")]
    assert [page for page in pages if f"]({page[1]})" not in PAGES[f"{page[0]}/index.md"]] == []


def test_pages__say_for_whom_they_are() -> None:
    """A reader knows from the first lines whether to go on."""
    heads = {page: PAGES[page].split("\n", 2) for page in DOCS if page != "docs/index.md"}
    wrong = [page for page, (title, _, words) in heads.items() if title[:2] != "# " or not words.startswith("For ")]
    assert wrong == []
