"""The memory in which a worker's main process publishes its holds, seen by both sides."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.scoreboard import MAX_CELLS, Cell, HoldState, ParentCell, Scoreboard
from django_zklock.zk.session import SessionListener
from django_zklock.zk.waiting import boottime
from tests.toolbox.timing import scaled

pytestmark = [pytest.mark.celery, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

# Seconds, enough for a busy machine.
SOON = scaled(60)


class Session:
    """A session that the test ends and renews."""

    def __init__(self) -> None:
        self.lease_end = boottime() + 600.0
        self.ended: str | None = None
        self.monitor = threading.RLock()
        self.listeners: dict[SessionListener, None] = {}

    def add_listener(self, listener: SessionListener) -> None:
        self.listeners[listener] = None

    def beat(self) -> None:
        for listener in list(self.listeners):
            listener.heartbeat()


class Contender:
    """A contender that holds."""

    def __init__(self, session: Session | None = None) -> None:
        self.session = session or Session()
        self.lost: str | None = None
        self.revoked: str | None = None
        self.loss_reason_pending = False


def opened(scoreboard: Scoreboard, hold_id: int, of: Contender | None = None) -> tuple[ParentCell, Cell]:
    """Return the cell of a new hold as the main process and as a child see it."""
    contender: Any = of or Contender()
    cell = ParentCell(scoreboard, hold_id, contender)
    return cell, Cell(scoreboard, cell.number, hold_id)


def in_child(call: Callable[[], bool]) -> bool:
    """Return what ``call`` returns in a fork of this process: the kernel knows its locks by their process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write_end, b"1" if call() else b"0")
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    found = os.read(read_end, 1)
    os.close(read_end)
    return found == b"1"


# What a child does to the descriptors that it has inherited.


def close(scoreboard: Scoreboard) -> None:
    """Close the descriptor, as ``os.closerange`` does."""
    os.close(scoreboard._claims.fd)


def use_again(scoreboard: Scoreboard) -> None:
    """Close the descriptor, and open another file that gets its number."""
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), scoreboard._claims.fd)


changes = pytest.mark.parametrize("change", [close, use_again])


def test_lease__renewed() -> None:
    """The lease of a hold is known from its beginning, and each heartbeat renews it until the hold is over."""
    scoreboard, session = Scoreboard(), Session()
    (first, in_first), (second, in_second) = (opened(scoreboard, each, Contender(session)) for each in (1, 2))
    assert in_first.lease_end == in_second.lease_end == session.lease_end
    session.lease_end = 5.0
    session.beat()
    assert (in_first.lease_end, in_second.lease_end) == (5.0, 5.0)
    first.close()
    session.lease_end = 6.0
    session.beat()
    assert in_second.lease_end == 6.0
    second.close()
    assert session.listeners == {}


def test_lease__of_a_hold_that_is_over() -> None:
    """A heartbeat that comes with the end of a hold does not renew the lease of the next one in the cell."""
    scoreboard, ended, session = Scoreboard(), Session(), Session()
    first, _ = opened(scoreboard, 1, Contender(ended))
    scoreboard.free.clear()
    first.close()
    _second, in_second = opened(scoreboard, 2, Contender(session))
    ended.lease_end = 9.0
    first.heartbeat()
    assert in_second.lease_end == session.lease_end


def test_claim__once_it_is_withdrawn() -> None:
    """A withdrawn hold cannot be claimed; a claimed one cannot be withdrawn, nor claimed by a second process."""
    scoreboard = Scoreboard()
    (claimed, in_one), (withdrawn, in_other) = opened(scoreboard, 1), opened(scoreboard, 2)
    assert in_one.claim(71)
    assert [cell.withdraw() for cell in (claimed, withdrawn)] == [False, True]
    assert not in_other.claim(72)
    assert not in_one.claim(72)
    assert (claimed.claimed_by, withdrawn.claimed_by, in_one.state) == (71, None, HoldState.HELD)
    assert len(scoreboard.free) == MAX_CELLS - 1


def test_claim__lease_over() -> None:
    """A hold whose lease is over cannot be claimed, and is claimed by no child: its parent may give it up."""
    session = Session()
    session.lease_end = boottime() - 1.0
    cell, in_one = opened(Scoreboard(), 1, Contender(session))
    assert not in_one.claim(71)
    assert cell.claimed_by is None


def test_claim__of_a_hold_that_is_over() -> None:
    """A hold that was lost or released cannot be claimed."""
    scoreboard, contender = Scoreboard(), Contender()
    cell, in_one = opened(scoreboard, 1, contender)
    contender.lost = "its node was deleted"
    cell.update()
    assert not in_one.claim(71)
    cell.close()
    assert not in_one.claim(71)
    assert cell.claimed_by is None
    assert len(scoreboard.free) == MAX_CELLS


@changes
def test_claim__without_the_descriptor(change: Callable[[Scoreboard], None]) -> None:
    """A child that has closed the descriptor claims nothing any more, and touches no file that has got its number."""
    scoreboard = Scoreboard()
    cell, in_one = opened(scoreboard, 1)

    def claim() -> bool:
        change(scoreboard)
        return in_one.claim(os.getpid())

    assert not in_child(claim)
    assert cell.withdraw()


@changes
def test_claimed__then_without_the_descriptor(change: Callable[[Scoreboard], None]) -> None:
    """A body that closes the descriptor, or dies, keeps what it has claimed: the kernel forgets it, the memory not."""
    scoreboard = Scoreboard()
    cell, in_one = opened(scoreboard, 1)

    def claim() -> bool:
        claimed = in_one.claim(os.getpid())
        change(scoreboard)
        return claimed

    assert in_child(claim)
    assert not cell.withdraw()
    assert cell.claimed_by is not None


CONTESTED = """
import os, sys
from types import SimpleNamespace
from contextlib import nullcontext
from django_zklock.contrib.celery.gate.scoreboard import MAX_CELLS, Cell, ParentCell, Scoreboard
class Session:
    lease_end, ended, monitor, listeners = float("inf"), None, nullcontext(), {}
    def add_listener(self, listener): pass
contender = SimpleNamespace(session=Session(), lost=None, revoked=None)
board = Scoreboard()
cells = [ParentCell(board, number + 1, contender) for number in range(MAX_CELLS)]
answers, begin = os.pipe(), os.pipe()
pid = os.fork()
if not pid:
    os.read(begin[0], 1)
    claimed = bytes(Cell(board, cell.number, number + 1).claim(os.getpid()) for number, cell in enumerate(cells))
    os.write(answers[1], claimed)
    os._exit(0)
os.write(begin[1], b"x")
withdrawn = [cell.withdraw() for cell in reversed(cells)][::-1]
os.waitpid(pid, 0)
claimed = [bool(each) for each in os.read(answers[0], MAX_CELLS)]
assert len(claimed) == MAX_CELLS
both = sum(ours and theirs for ours, theirs in zip(withdrawn, claimed))
# Where both were there at the same moment, neither has it: the child says so, and the parent looks again.
left = [cell for cell, ours, theirs in zip(cells, withdrawn, claimed) if not ours and not theirs]
print(both, all(cell.withdraw() for cell in left))
"""


def test_claim__contested() -> None:
    """Of thousands of holds that a child claims while its parent withdraws them, none is both claimed and withdrawn."""
    ran = subprocess.run(
        [sys.executable, "-c", CONTESTED],
        cwd=Path(__file__).parents[5], capture_output=True, text=True, check=True, timeout=SOON,
    )  # fmt: skip
    assert ran.stdout.split() == ["0", "True"]


def test_claim__of_a_thread() -> None:
    """A thread claims nothing while another one of its process decides: the kernel does not keep the two apart."""
    scoreboard = Scoreboard()
    cell, in_thread = opened(scoreboard, 1)
    claimed: list[bool] = []
    claiming = threading.Thread(target=lambda: claimed.append(in_thread.claim(71)))
    with scoreboard.deciding(cell.number) as alone:
        assert alone
        claiming.start()
        claiming.join(0.2)
        assert claimed == []
        assert cell.withdraw()
    claiming.join()
    assert claimed == [False]


@pytest.mark.shows("faults#the-lock-is-lost-when-the-body-has-ended-and-the-main-process-does-not-know-of-the-end")
def test_end__while_it_is_killed() -> None:
    """A body cannot end while its child is being killed: a reader of the end knows that nothing kills the child."""
    scoreboard = Scoreboard()
    cell, in_one = opened(scoreboard, 1)
    assert in_one.claim(71)
    read_end, write_end = os.pipe()
    pids: list[int] = []
    ended_meanwhile: list[object] = []

    def kill() -> None:
        pids.append(os.fork())
        if not pids[0]:
            os.write(write_end, b"1")
            in_one.end()
            os.write(write_end, b"2")
            os._exit(0)
        assert os.read(read_end, 1) == b"1"
        # Nothing has to come in this time.
        ended_meanwhile.extend(select.select([read_end], [], [], 0.2)[0])

    assert cell.kill(kill)
    os.waitpid(pids[0], 0)
    assert (ended_meanwhile, os.read(read_end, 1), cell.has_ended) == ([], b"2", True)
    os.close(read_end)
    os.close(write_end)


def test_end__is_not_killed() -> None:
    """A child that has ended its hold is not killed for it, and the next hold in the cell has not ended."""
    scoreboard = Scoreboard()
    first, in_first = opened(scoreboard, 1)
    assert in_first.claim(71)
    assert not first.has_ended
    in_first.end()
    killed: list[int] = []
    assert not first.kill(lambda: killed.append(1))
    scoreboard.free.clear()
    first.close()
    second, in_second = opened(scoreboard, 2)
    assert in_second.claim(72)
    assert not second.has_ended
    assert second.kill(lambda: killed.append(2))
    assert killed == [2]


@changes
def test_end__without_the_descriptor(change: Callable[[Scoreboard], None]) -> None:
    """A body that has closed the descriptor writes its end too."""
    scoreboard = Scoreboard()
    cell, in_one = opened(scoreboard, 1)

    def end() -> bool:
        change(scoreboard)
        in_one.end()
        return True

    assert in_child(end)
    assert not cell.kill(pytest.fail)


def test_reasons() -> None:
    """A reason is kept for each state, cut at a whole character."""
    contender = Contender()
    cell, in_one = opened(Scoreboard(), 1, contender)
    contender.revoked = "deploy"
    cell.update()
    contender.lost = "é" * 2000
    cell.update()
    assert in_one.state is HoldState.LOST
    assert in_one.reason(HoldState.LOST) == "é" * 511
    assert in_one.reason(HoldState.REVOKED) == "deploy"


def test_cell_of_another_hold() -> None:
    """When a cell has been given to another hold, the first one neither changes it nor sees its state."""
    scoreboard, contender = Scoreboard(), Contender()
    first, in_first = opened(scoreboard, 1, contender)
    scoreboard.free.clear()
    first.close()
    second, in_second = opened(scoreboard, 2)
    assert second.number == first.number
    assert in_second.claim(72)
    contender.lost = "its node was deleted"
    first.update()
    first.close()
    assert (in_first.state, in_second.state) == (None, HoldState.HELD)
    assert (first.claimed_by, second.claimed_by) == (None, 72)


def test_full() -> None:
    """Without a free cell there is none, and nothing listens to the session."""
    scoreboard = Scoreboard()
    contender: Any = Contender()
    scoreboard.free.clear()
    with pytest.raises(IndexError):
        ParentCell(scoreboard, 1, contender)
    assert contender.session.listeners == {}


def test_lost__before_the_reason() -> None:
    """A loss is written at once; no child begins then, and the reason follows."""
    contender = Contender()
    cell, seen = opened(Scoreboard(), 1, contender)
    contender.lost, contender.loss_reason_pending = "its node was deleted", True
    assert cell.update() is HoldState.LOST
    assert (seen.state, seen.claim(71)) == (HoldState.LOSING, False)
    contender.lost, contender.loss_reason_pending = "its node was deleted: deploy", False
    cell.update()
    assert (seen.state, seen.reason(HoldState.LOST)) == (HoldState.LOST, "its node was deleted: deploy")
