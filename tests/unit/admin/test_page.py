"""One page of the list, with more locks than can be read or sorted in its time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from kazoo.client import KazooClient

from django_zklock.admin import LockAdmin, page
from django_zklock.admin.page import Page, SharedPages
from django_zklock.admin.reader import AliasReader
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk.ops import search, snapshots
from django_zklock.zk.ops.search import BY_KEY
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.pool import Pool
from tests.toolbox.django.command import Hold, Join
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.unit.admin.pages import LIST, body_of, text_of

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

LOCKS = 8


@pytest.fixture
def locks(hold: Hold, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold eight locks, of which the last has a waiter; a page has two, and a batch too."""
    monkeypatch.setattr(LockAdmin, "list_per_page", 2)
    monkeypatch.setattr(search, "BATCH_SIZE", 2)
    monkeypatch.setattr(page, "BATCH_SIZE", 2)
    for number in range(LOCKS):
        held = hold(f"key-{number}")
    join(held)


def keys(text: str) -> list[int]:
    """Return the numbers of the keys on a page, in their order."""
    return [int(number) for number in re.findall(r" key-(\d) exclusive ", text)]


@pytest.mark.django_db
def test_too_many_to_sort(viewer: Client, locks: None, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many locks the list is in the order of keys, says so, and reads what it shows."""
    assert keys(text_of(viewer.get(LIST))) == [7, 0]
    monkeypatch.setattr(page, "MAX_SORTED", LOCKS - 1)
    reads.clear()
    text = text_of(viewer.get(LIST))
    assert f"There are {LOCKS} queues, too many to sort them for a page: the list is in the order of keys." in text
    assert keys(text) == [0, 1]
    # Once to see which are in use, and once to show them.
    assert len(reads) == 4
    assert f"at most {LOCKS} locks" in text
    # With an order by key the user was not promised anything else.
    assert "too many" not in text_of(viewer.get(LIST, {"o": "-0"}))
    answer = viewer.get(f"{LIST}json/").json()
    assert [lock["key"] for lock in answer["locks"]] == ["key-0", "key-1"]
    assert len(answer["notices"]) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(("order", "shown"), [("0", [4, 5]), ("-0", [3, 2])])
def test_later_page_of_very_many(
    viewer: Client, locks: None, reads: list[str], monkeypatch: pytest.MonkeyPatch, order: str, shown: list[int]
) -> None:
    """Of very many locks those of earlier pages are not read to show a later one."""
    monkeypatch.setattr(page, "MAX_SORTED", LOCKS - 1)
    assert keys(text_of(viewer.get(LIST, {"o": order, "p": "3"}))) == shown
    assert len(reads) == 4


@pytest.mark.django_db
@pytest.mark.parametrize("free", [1, 2, 5, 9])
@pytest.mark.parametrize("number", ["4", "100000"])
def test_last_page_of_very_many__free(
    viewer: Client, locks: None, zklock: str, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch, free: int,
    number: str,
) -> None:  # fmt: skip
    """If all queues at the end are those of free locks, the last page has the last locks that are in use."""
    monkeypatch.setattr(page, "MAX_SORTED", LOCKS - 1)
    for each in range(free):
        kazoo_client.create(f"{zklock}/later-{each}")
    answer = viewer.get(f"{LIST}json/", {"o": "0", "p": number})
    assert answer.status_code == 200
    assert keys(text_of(viewer.get(LIST, {"o": "0", "p": number})))[-1] == LOCKS - 1
    found = answer.json()
    assert found["page"] <= found["pages"]
    assert found["count"] >= LOCKS
    assert not found["notices"]


@pytest.mark.django_db
def test_last_page_of_very_many__time_is_up(
    viewer: Client, locks: None, zklock: str, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no time to find the last locks in use, the page says that it has read a part."""
    monkeypatch.setattr(page, "MAX_SORTED", LOCKS - 1)
    monkeypatch.setattr(AliasReader, "is_late", property(lambda reader: reader.progress.read >= 2))
    for each in range(4):
        kazoo_client.create(f"{zklock}/later-{each}")
    text = text_of(viewer.get(LIST, {"o": "0", "p": "100"}))
    assert "2 of 12 queues of “default” were read in " in text
    assert keys(text) == []


@pytest.mark.django_db
@pytest.mark.parametrize("order", ["", "0"], ids=["urgency", "key"])
@pytest.mark.parametrize("number", ["0", "-1"])
def test_page_before_the_first(viewer: Client, locks: None, order: str, number: str) -> None:
    """A number below 1 is that of the first page, which has its locks."""
    wanted = {"o": order} if order else {}
    first, answer = (viewer.get(f"{LIST}json/", wanted | page).json() for page in ({}, {"p": number}))
    assert len(first["locks"]) == 2
    assert [lock["key"] for lock in answer["locks"]] == [lock["key"] for lock in first["locks"]]
    assert answer["page"] == 1


@pytest.mark.django_db
@pytest.mark.parametrize("parameters", [{}, {"o": "3"}, {"kind": "exclusive"}], ids=["urgency", "age", "filter"])
def test_time_is_up(
    viewer: Client, locks: None, reads: list[str], monkeypatch: pytest.MonkeyPatch, parameters: dict[str, str]
) -> None:
    """A page whose time is up shows what was read, says how much that is, and reads nothing else."""
    monkeypatch.setattr(AliasReader, "is_late", property(lambda reader: reader.progress.read >= 4))
    text = text_of(viewer.get(LIST, parameters))
    assert f"4 of {LOCKS} queues of “default” were read in " in text
    assert "cannot be" not in text
    # The newest first, by age.
    assert keys(text) == ([3, 2] if parameters == {"o": "3"} else [0, 1])
    assert f"at most {LOCKS} locks" in text
    # The two of the page once more.
    assert len(reads) == 6


@pytest.mark.django_db
def test_too_many_match(viewer: Client, locks: None, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a filter that too many locks match, the first of them are sorted, and the page says how many."""
    monkeypatch.setattr(page, "MAX_SORTED", 3)
    text = text_of(viewer.get(LIST, {"kind": "exclusive", "o": "-6"}))
    assert "Too many locks of “default” match to sort all for a page: the list has only the first 4 of them" in text
    assert keys(text) == [3, 2]
    assert len(reads) == 6


@pytest.mark.django_db
def test_no_answer_in_time(viewer: Client, locks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper that has answered this page, and does not answer the rest in time, is not away."""
    list_queues = snapshots.list_queues

    def answer(pool: Pool, names: list[str], *, timeout: float) -> list[LockSnapshot]:
        if "key-4" in names:
            raise ZooKeeperUnavailable("no answer")
        return list_queues(pool, names, timeout=timeout)

    monkeypatch.setattr(snapshots, "list_queues", answer)
    text = text_of(viewer.get(LIST))
    assert f"4 of {LOCKS} queues of “default” were read" in text
    assert keys(text) == [0, 1]


@pytest.mark.django_db
def test_first_answer_is_late(viewer: Client, locks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that answers something else meanwhile: it has much to do."""
    check_answers = snapshots.check_answers

    def answer_late(pool: Pool, *, timeout: float) -> None:
        check_answers(pool, timeout=timeout)
        raise ZooKeeperUnavailable("no answer")

    viewer.get(LIST)
    monkeypatch.setattr(snapshots, "check_answers", answer_late)
    assert keys(text_of(viewer.get(LIST))) == [7, 0]

    def be_silent(_pool: Pool, *, timeout: float) -> None:
        raise ZooKeeperUnavailable(f"no answer within {timeout:g} s")

    monkeypatch.setattr(snapshots, "check_answers", be_silent)
    assert "cannot be shown. no answer within " in text_of(viewer.get(LIST))


@pytest.mark.django_db
def test_live__one_reading(viewer: Client, locks: None, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that update themselves share a reading that they have not seen; a page that is loaded reads for itself."""
    monkeypatch.setattr(page, "MAX_AGE", 60.0)

    def update(seen: str, order: str = "0") -> str:
        """Update a tab that shows the reading of that moment; return the moment of the next one."""
        reads.clear()
        headers = {"X-Zklock-Live": seen} if seen else {}
        body = body_of(viewer.get(LIST, {"o": order}, headers=headers))
        assert "key-0" in body or "key-7" in body
        (moment,) = re.findall(r'data-zklock-moment="(\d+\.\d+)"', body)
        return str(moment)

    loaded = update("")
    assert reads
    first = update(loaded)
    assert reads
    # Another tab, which shows the same.
    assert update(loaded) == first
    assert not reads
    assert update(first) != first
    assert reads
    for seen, order in ((loaded, "-0"), ("", "0"), ("nonsense", "0")):
        update(seen, order)
        assert reads


@pytest.mark.django_db
def test_time_is_up__while_sorting(viewer: Client, locks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all queues were listed, and the holders of some were not read in time, these locks come last, by key."""
    read_entries, calls = snapshots.read_entries, list[int]()

    def count(pool: Pool, locks: list[LockSnapshot], **options: Any) -> list[LockSnapshot]:
        calls.append(len(locks))
        return read_entries(pool, locks, **options)

    monkeypatch.setattr(snapshots, "read_entries", count)
    # That of the lock with a waiter, and those of the first two others.
    monkeypatch.setattr(AliasReader, "is_late", property(lambda _reader: len(calls) >= 2))
    text = text_of(viewer.get(LIST, {"p": "2"}))
    assert keys(text) == [1, 2]
    assert re.search(rf"too short to sort all locks of “default”: {LOCKS - 3} of them come last, in the order of", text)
    assert f" {LOCKS} locks " in text


def a_page() -> Page:
    return Page(
        locks=[],
        ordering=BY_KEY,
        number=1,
        count=0,
        is_exact=True,
        kinds=frozenset(),
        notices=[],
        readers=[],
        read_at=0.0,
    )


def test_shared_pages__at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads that want the same page one reads it, and the other waits for that; other pages do not wait."""
    monkeypatch.setattr(page, "MAX_AGE", 60.0)
    pages, reading, go_on = SharedPages(), threading.Event(), threading.Event()
    found = a_page()

    def read() -> Page:
        assert not reading.is_set()
        reading.set()
        assert go_on.wait(60)
        return found

    first = Runner(lambda: pages.get("k", -1, read))
    wait_until(reading.is_set)
    second = Runner(lambda: pages.get("k", -1, read))
    other = a_page()
    assert pages.get("l", -1, lambda: other) is other
    go_on.set()
    assert first.result() is found
    assert second.result() is found


def test_shared_pages__old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is read again when it is old, and is not kept for ever."""
    pages = SharedPages()
    now = [100.0]
    monkeypatch.setattr(page, "monotonic", lambda: now[0])
    pages.get("k", -1, a_page)
    refuse: Callable[[], Any] = lambda: pytest.fail("it was read again")  # noqa: E731
    now[0] += page.MAX_AGE
    pages.get("k", -1, refuse)
    now[0] += 0.1
    fresh = a_page()
    assert pages.get("l", -1, lambda: fresh) is fresh
    assert pages.get("k", -1, lambda: fresh) is fresh
