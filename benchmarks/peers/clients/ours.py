"""This project: ``zk_lock`` on the session of a pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import django
from django.conf import settings
from django.test import override_settings

from benchmarks.peers.clients.recipe import Cycle, MakeCycle, granted, refused
from benchmarks.peers.load import Load

if not settings.configured:
    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"default": {"HOSTS": "127.0.0.1:2181"}})
    django.setup()

from django_zklock import zk_lock
from django_zklock.connections import connections
from django_zklock.zk.lock import Lock

SESSION_TIMEOUT = 30


@contextmanager
def connect(load: Load) -> Iterator[MakeCycle]:
    """Open a session at the first use. The alias "other" has another one."""

    def make(kind: str, keys: Sequence[str]) -> Cycle:
        return refused(lock_of(kind, keys).try_acquire) if kind == "try" else granted(lock_of(kind, keys))

    def lock_of(kind: str, keys: Sequence[str]) -> Lock:
        match kind:
            case "read":
                return zk_lock(keys[0], mode="read")
            case "write":
                return zk_lock(keys[0], mode="write")
            case "semaphore":
                return zk_lock(keys[0], limit=load.limit)
            case "several":
                return zk_lock(keys)
            case _:
                return zk_lock(keys[0])

    alias = {"HOSTS": load.hosts, "SESSION_TIMEOUT": SESSION_TIMEOUT}
    with override_settings(ZKLOCK={"default": alias, "other": alias}), ExitStack() as stack:
        stack.callback(connections.reset)
        if load.kind == "try":
            # A thread that stays is another owner, and is there as long as the hold.
            holder = stack.enter_context(ThreadPoolExecutor(1))
            for name in load.names:
                held = holder.submit(zk_lock(name, using="other").acquire).result()
                stack.callback(held.release)
        yield make
