"""The ends of connections: whether the server ends each of them at the same request, and how soon the next follows."""

from __future__ import annotations

import pytest

from django_zklock.zk.wire.endings import TRIAL, Endings

TIMEOUT, PAUSE = 10.0, 0.5
BROKEN = "socket connection broken"
QUESTION = "is it ZooKeeper 3.6 or newer, is jute.maxbuffer the default?"
CLOSES = "the server takes the session, and closes the connection"


class Clock:
    """Connections one after the other."""

    def __init__(self) -> None:
        self.now = 100.0
        self.endings = Endings()

    def connect(self, *unanswered: str, lasts: float = 0.01, answers: bool = False, reason: str = BROKEN) -> bool:
        """Let a connection begin and end; return whether it was of use."""
        self.endings.begin(self.now, TIMEOUT)
        began, self.now = self.now, self.now + lasts
        received = began + lasts / 2 if answers else began
        return self.endings.end(self.now, reason, unanswered, received=received, pause=PAUSE)

    def explain(self) -> str | None:
        return self.endings.explain(self.now)


@pytest.mark.shows("faults#a-server-closes-the-connection-at-a-request")
def test_same_request() -> None:
    """From the second end at the same request on there are pauses, and a reason, whatever is answered before it."""
    clock = Clock()
    assert clock.connect("createContainer", answers=True)
    assert clock.explain() is None
    for _ in range(3):
        assert not clock.connect("createContainer", answers=True)
        assert clock.explain() == f"{CLOSES} at createContainer: {QUESTION}"


def test_other_requests() -> None:
    """Ends at other requests, or without any, are those of a network: the next connection follows at once."""
    clock = Clock()
    for unanswered in (["sync"], ["create2"], [], ["sync", "getData"], ["multi"]):
        assert clock.connect(*unanswered, answers=True)
        assert clock.explain() is None


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([], ["sync"]), (["sync"], []), (["sync"], ["getData"])], ids=str
)
def test_no_answer(first: list[str], second: list[str]) -> None:
    """A server that takes the session and closes before an answer repeats itself, whatever is on its way by then."""
    clock = Clock()
    assert not clock.connect(*first)
    assert clock.explain() is None
    assert not clock.connect(*second)
    assert clock.explain() == f"{CLOSES}: {QUESTION}"


def test_no_answer__then_another_end() -> None:
    """An end after an answer has another reason than one before, if no request was under way at both."""
    clock = Clock()
    clock.connect("sync")
    assert clock.connect("getData", answers=True)
    assert clock.explain() is None
    assert not clock.connect("sync")
    assert clock.explain() is None


@pytest.mark.shows("faults#a-load-balancer-closes-idle-connections")
def test_idle() -> None:
    """Connections that a load balancer ends because they are idle are of use."""
    clock = Clock()
    for _ in range(3):
        assert clock.connect(lasts=PAUSE * 1.1)
        assert clock.connect("sync", lasts=PAUSE * 1.1, answers=True)
    # Twice at the same request by chance: no pause either.
    assert clock.connect("sync", lasts=PAUSE * 1.1, answers=True)


def test_served() -> None:
    """A connection that has served for a while says nothing about the requests at its end, nor about earlier ends."""
    clock = Clock()
    clock.connect("sync", answers=True)
    clock.connect("sync", answers=True)
    assert clock.explain() is not None
    # While it is on trial, and after that.
    clock.endings.begin(clock.now, TIMEOUT)
    assert clock.explain() is not None
    clock.now += TIMEOUT * TRIAL
    assert clock.explain() is None
    assert clock.connect("sync", lasts=TIMEOUT * TRIAL, answers=True)
    assert clock.explain() is None
    assert clock.connect("sync", answers=True)
    assert clock.explain() is None


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (["create", "createContainer", "create2"], ["createContainer", "create2"], "createContainer or create2"),
        (["multi", "createContainer", "getChildren"], ["multi", "createContainer", "getChildren"],
         "createContainer, multi or getChildren"),
        (["getData", "setWatches"], ["getData", "setWatches", "sync"], "getData or setWatches"),
    ],
)  # fmt: skip
def test_candidates(first: list[str], second: list[str], named: str) -> None:
    """The answers to requests before the one that is not known may be lost too: all candidates are named."""
    clock = Clock()
    clock.connect(*first)
    clock.connect(*second)
    assert clock.explain() == f"{CLOSES} at {named}: {QUESTION}"


def test_our_own_end() -> None:
    """Where the answer is the reason why this side ends the connection, that is said."""
    clock = Clock()
    reason = "the answer to create2 is SessionMovedError()"
    clock.connect("create2", reason=reason)
    clock.connect("create2", reason=reason)
    assert clock.explain() == f"the connection ends at create2: {reason}"
