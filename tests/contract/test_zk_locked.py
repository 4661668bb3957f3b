"""`@zk_locked` on both servers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

import pytest
from asgiref.sync import sync_to_async

from django_zklock import LockLost, current_lock, zk_locked
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]


@pytest.mark.shows("ownership#holds-that-are-lost")
@pytest.mark.parametrize("on_lost", ["raise", "ignore"])
def test_zk_locked__lost_and_called_again(ensemble: Ensemble, on_lost: Literal["raise", "ignore"]) -> None:
    """Inside of a call whose lock is lost nothing takes that lock, whatever becomes of the errors; after it all do."""

    @zk_locked("k", template="k")
    def inner() -> None: ...

    @zk_locked("k", template="k", on_lost=on_lost)
    def work() -> None:
        held = current_lock()
        assert held is not None
        ensemble.end_session()
        wait_until(lambda: held.lost)
        for _ in range(2):
            with pytest.raises(LockLost):
                inner()

    @zk_locked("k", template="k", on_lost=on_lost)
    async def awork() -> None:
        work_sync = sync_to_async(work)
        held = current_lock()
        assert held is not None
        await asyncio.to_thread(ensemble.end_session)
        await asyncio.to_thread(wait_until, lambda: held.lost)
        with pytest.raises(LockLost):
            await work_sync()

    for call in (work, lambda: asyncio.run(awork())):
        with contextlib.nullcontext() if on_lost == "ignore" else pytest.raises(LockLost):
            call()
        inner()
    ensemble.wait_empty("k")
