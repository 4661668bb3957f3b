"""Pools of tests, and what a pool really has on a machine: kazoo's client, and the threads."""

from __future__ import annotations

from collections.abc import Callable

from django_zklock.zk.background import BackgroundCalls, TimerThread
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.wire import Wire

MakePool = Callable[..., Pool]


def wire_of(session: Session) -> Wire:
    """Return the client of a session."""
    assert isinstance(session.wire, Wire)
    return session.wire


def timers_of(session: Session) -> TimerThread:
    """Return the timers of a session."""
    assert isinstance(session._timer_thread, TimerThread)
    return session._timer_thread


def actions_of(pool: Pool) -> BackgroundCalls:
    """Return the threads of a pool for short calls."""
    assert isinstance(pool.actions, BackgroundCalls)
    return pool.actions


def session_of(pool: Pool) -> int:
    """Return the number of a pool's only session."""
    number = pool.sessions()[0].id
    assert number is not None
    return number


def is_idle(pool: Pool) -> bool:
    """Tell whether nothing in the only session of a pool holds, waits, or has a node that is still to be deleted."""
    return not pool.sessions()[0].listeners
