"""What an attempt tells of its hold when nothing else has the hold any more."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from django_zklock.zk import owners
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from tests.support.loss_recorder import Losses
from tests.support.tree_reader import wait_until


def granted(lock: Lock) -> Acquisition:
    attempt = Acquisition(lock, None, lambda: None, owners.caller())
    attempt.start()
    wait_until(lambda: attempt.contender.state is State.HELD)
    assert attempt.poll()
    return attempt


def test_loss__told_when_the_reason_is_known(pool: Pool) -> None:
    """A hold that is lost and released before the reason is known is told of all the same."""
    losses = Losses()
    attempt = granted(Lock("k", pool, listener=losses))
    contender, session = attempt.contender, attempt.contender.session
    # Nothing goes on in the session meanwhile.
    with session.monitor:
        contender.loss_reason_pending = True
        contender.lose("its node was deleted")
        held = attempt.held
        assert held is not None
        held.release()
        del held
        gc.collect()
        contender.lost = "broken by an operator"
        contender.loss_reason_pending = False
        attempt._changed()
        # Nothing is kept for longer.
        assert attempt._kept is None
    wait_until(lambda: losses.told)
    assert [(held.key, reason) for held, reason in losses.told] == [("k", "broken by an operator")]


def test_loss__seen_by_the_holder(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold whose end of the lease is noticed by its holder, which releases it at once, is told of all the same."""
    losses = Losses()
    attempt = granted(Lock("k", pool, listener=losses))
    session = attempt.contender.session
    posted: list[Callable[[], object]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Session, "lease_expired", True)
        patch.setattr(Session, "post", lambda _session, call: posted.append(call))
        held = attempt.held
        assert held is not None
        assert held.lost
        held.release()
        del held
        gc.collect()
    while posted:
        session.post(posted.pop(0))
    wait_until(lambda: losses.told)
    assert "the lease ran out" in losses.told[0][1]
