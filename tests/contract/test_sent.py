"""Which calls are sent and have not begun: the marks of messages, whatever comes late or is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import scripts
from django_zklock.zk.ops import sent, snapshots
from django_zklock.zk.ops.sent import Mark, Removal, SentCall
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import Request, RequestScript
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

HOUR = 3600.0
LONG = 600.0
DATA = sent.encode(key="invoice:7", task="bill", max_age=HOUR)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no slow answer look like none."""
    monkeypatch.setattr(sent, "MAX_ASK", scaled(20))


def mark(pool: Pool, id: str) -> Mark:  # noqa: A002
    return sent.new_mark(pool, id, "bill", "invoice:7")


def claim(pool: Pool, id: str, *, max_age: float = HOUR) -> str | None:  # noqa: A002
    return sent.claim(pool, mark(pool, id), DATA, max_age=max_age)


def send(pool: Pool, id: str) -> None:  # noqa: A002
    """Do what a sender does."""
    assert claim(pool, id) == id
    confirm(pool, id)


def confirm(pool: Pool, id: str) -> None:  # noqa: A002
    sent.confirm(pool, mark(pool, id))
    # Behind it in the same session.
    remove(pool, "another")


def only(pool: Pool) -> SentCall:
    """Return the only call that is sent and has not begun."""
    (call,) = sent.find(pool, timeout=scaled(20))
    return call


def remove(pool: Pool, id: str) -> None:  # noqa: A002
    sent.remove(pool, mark(pool, id), timeout=scaled(20))


def test_claim__until_the_body_begins(make_pool: MakePool) -> None:
    """Each call finds the one that was sent, until a worker removes its mark; and operators see it."""
    pools = [make_pool() for _ in range(2)]
    send(pools[0], "first")
    assert [claim(pools[number % 2], f"later{number}") for number in range(4)] == ["first"] * 4
    call = only(pools[1])
    assert (call.key, call.task, call.id, call.saved) == ("invoice:7", "bill", "first", 4)
    # No lock of that name.
    assert snapshots.list_names(pools[0], timeout=scaled(20)) == []
    remove(pools[1], "first")
    assert sent.find(pools[0], timeout=scaled(20)) == []
    send(pools[0], "second")


def test_claim__not_confirmed(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that may not have been sent keeps no call from being sent; after a while its mark is taken over."""
    pool, other = make_pool(), make_pool()
    assert claim(pool, "died") == "died"
    assert claim(other, "second") is None
    monkeypatch.setattr(sent, "MAX_UNCONFIRMED", -1.0)
    assert claim(other, "third") == "third"
    # The sender was slow, and not dead.
    confirm(pool, "died")
    assert not only(pool).is_confirmed
    confirm(other, "third")
    assert claim(pool, "fourth") == "third"


def test_claim__too_old(make_pool: MakePool) -> None:
    """A message that has waited for too long may be lost: the next call is sent, and those after it are not."""
    pool = make_pool()
    send(pool, "lost")
    assert claim(pool, "next", max_age=-1.0) == "next"
    confirm(pool, "next")
    # It was not lost.
    remove(pool, "lost")
    assert claim(pool, "last") == "next"


def test_confirm__after_the_body_has_begun(make_pool: MakePool) -> None:
    """A sender that stood still confirms nothing: not its own message, which has begun, and not the next one."""
    pool = make_pool()
    assert claim(pool, "first") == "first"
    remove(pool, "first")
    assert claim(pool, "second") == "second"
    confirm(pool, "first")
    call = only(pool)
    assert (call.id, call.is_confirmed) == ("second", False)


def test_removal__of_another_message(make_pool: MakePool) -> None:
    """A message that is delivered twice does not take away the mark of a later one."""
    pool = make_pool()
    send(pool, "first")
    remove(pool, "first")
    send(pool, "second")
    remove(pool, "first")
    assert only(pool).id == "second"


def test_removal__while_the_sender_confirms(make_pool: MakePool) -> None:
    """A mark goes that is confirmed between the two requests which remove it."""
    pool, other = make_pool(), make_pool()
    assert claim(pool, "first") == "first"
    session = other.session(mark(other, "first").path)

    def send(request: Request) -> RequestScript[None]:
        yield [request]

    for request in next(sent.removal(session, mark(other, "first"))) or ():
        scripts.run(session, partial(send, request), action="delete", timeout=scaled(20))
        confirm(pool, "first")
    assert sent.find(pool, timeout=scaled(20)) == []


def test_removal__as_soon_as_there_is_a_connection(make_pool: MakePool, observer: Observer) -> None:
    """A removal outlives the end of its session."""
    pool, gone = make_pool(), threading.Event()
    send(pool, "first")
    observer.end_session(pool)
    Removal(pool.session(mark(pool, "first").path), mark(pool, "first"), lambda _error: gone.set()).start()
    assert gone.wait(scaled(40))
    assert sent.find(pool, timeout=scaled(20)) == []


def test_removal__of_a_closed_pool(make_pool: MakePool) -> None:
    """A removal ends with its session, and says so."""
    pool = make_pool()
    send(pool, "first")
    session = pool.session(mark(pool, "first").path)
    errors: list[Exception | None] = []
    pool.close()
    Removal(session, mark(pool, "first"), errors.append).start()
    wait_until(lambda: errors, 20, "the removal has ended")
    assert isinstance(errors[0], ConnectionError)


def test_claim__without_zookeeper(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call does not wait for long: it is sent."""
    monkeypatch.setattr(sent, "MAX_ASK", 0.2)
    pool = make_pool(f"{LOOPBACK}:{free_port()}")
    with pytest.raises(ZooKeeperUnavailable):
        claim(pool, "first")
    # The next ones do not wait for it once more.
    monkeypatch.setattr(sent, "MAX_ASK", LONG)
    for _ in range(5):
        with pytest.raises(ZooKeeperUnavailable, match="has not answered a call before"):
            claim(pool, "next")


def test_claim__after_a_pause(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the pause, and on another connection before its end, a call asks again."""
    for pause, is_other in ((0.0, False), (LONG, True)):
        pool = make_pool()
        session = pool.session(mark(pool, "first").path)
        wait_until(lambda session=session: session.connected)  # type: ignore[misc]
        monkeypatch.setattr(sent, "PAUSE", pause)
        with monkeypatch.context() as patch:
            patch.setattr(sent, "MAX_ASK", 0.0)
            with pytest.raises(ZooKeeperUnavailable):
                claim(pool, "late")
        session.epoch += is_other
        claim(pool, f"after {pause}")


def test_claim__while_the_connection_is_lost(make_pool: MakePool) -> None:
    """A call does not wait at all for a connection that comes back."""
    pool = make_pool()
    send(pool, "first")
    session = pool.session(mark(pool, "first").path)
    session.post(partial(setattr, session, "connected", False))
    session.epoch += 1
    wait_until(lambda: not session.connected, 20, "the session is cut off")
    with pytest.raises(ZooKeeperUnavailable, match="not connected"):
        claim(pool, "second")


def test_find__what_others_have_written(make_pool: MakePool, observer: Observer, root: str) -> None:
    """Nodes that make no sense are shown as far as they do, or not at all."""
    pool = make_pool()
    send(pool, "first")
    for name, data in {"a": b"\xff", "b": b'{"v":1,"key":["x"],"task":"\\u001b[2J"}'}.items():
        observer.client.create(f"{root}/%sent/{name}/sent-x", makepath=True)
        observer.client.set(f"{root}/%sent/{name}", data)
    observer.client.create(f"{root}/%sent/c")
    texts = [(call.key, call.task, call.id) for call in sent.find(pool, timeout=scaled(20))]
    assert texts == [("", "", "x"), ("['x']", "\\x1b[2J", "x"), ("invoice:7", "bill", "first")]


def test_prune(make_pool: MakePool) -> None:
    """After an operator has removed a mark, calls are sent again."""
    pool = make_pool()
    send(pool, "purged")
    sent.prune(pool, [only(pool)], timeout=scaled(20))
    send(pool, "second")


def test_state() -> None:
    """A mark is stale when the next call takes it over."""
    states = [
        SentCall(
            key="k", task="t", id="1", since=time.time() - age, saved=0, is_confirmed=confirmed, max_age=HOUR, path="/p"
        ).state
        for confirmed in (True, False)
        for age in (0, sent.MAX_UNCONFIRMED + 1, HOUR + 1)
    ]
    assert states == ["sent", "sent", "stale", "unconfirmed", "stale", "stale"]


@pytest.mark.parametrize(
    ("name", "id"), [("../x", "1"), (7, "1"), ("a" * 32, None), ("a" * 32, "a/b"), ("a" * 31, "1")]
)
def test_mark_of__any_message(pool: Pool, name: object, id: object) -> None:  # noqa: A002
    """A message of any client names no node outside of the marks."""
    assert sent.mark_of(pool, name, id) is None


def test_claim__refused(make_pool: MakePool, observer: Observer, root: str) -> None:
    """A refusal of the server is an error, and no reason to wait."""
    pool = make_pool()
    # No children below an ephemeral node.
    observer.client.ensure_path(root)
    observer.client.create(f"{root}/%sent", ephemeral=True)
    try:
        with pytest.raises(ZkLockError, match="refused"):
            claim(pool, "first")
    finally:
        observer.client.delete(f"{root}/%sent")


# Its log tells requests from pings, of which a busy machine has any number.
@pytest.mark.parametrize("kind_of_server", ["testserver"])
def test_requests(make_pool: MakePool, server: ZooKeeperServer) -> None:
    """A call that is sent costs four requests, one that is not sent three, and the begin of a body two."""
    pool = make_pool()
    send(pool, "warm")
    remove(pool, "warm")

    def counted(call: Callable[[], object]) -> dict[str, int]:
        server.requests.clear()
        call()
        return {kind: count for kind, count in server.requests.counts().items() if kind not in {"ping", "sync"}}

    asked = {"setData": 1, "multi": 1, "getChildren": 1}
    assert counted(lambda: claim(pool, "first")) == asked
    # With the removal that waits for it.
    assert counted(lambda: confirm(pool, "first")) == {"multi": 1 + 2}
    assert counted(lambda: claim(pool, "second")) == asked
    assert counted(lambda: remove(pool, "first")) == {"multi": 2}
