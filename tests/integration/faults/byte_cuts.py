"""Cut a reply at every byte."""

from __future__ import annotations

from collections.abc import Callable

from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool, is_idle
from tests.toolbox.threads import Runner

# What stands in a frame before the path or with it: its length, the header of a reply, and the length of a text.
LENGTH, HEADER, TEXT = 4, 16, 4


# How many sessions share the bytes of a sweep: each spends its time on reconnects.
LANES = 12


def sweep(make_pool: MakePool, sizes: int, visit: Callable[[Pool, int], None]) -> None:
    """Visit every size from nought to ``sizes``, in several sessions at once."""
    # A session that survives on a busy machine, and sends few heartbeats, whose replies could be cut instead.
    pools = [make_pool(session_timeout=60.0) for _ in range(LANES)]

    def visit_some(lane: int) -> None:
        for size in range(lane, sizes + 1, LANES):
            visit(pools[lane], size)

    for runner in [Runner(lambda lane=lane: visit_some(lane)) for lane in range(LANES)]:  # type: ignore[misc]
        runner.result(60)
    assert all(is_idle(pool) for pool in pools)
