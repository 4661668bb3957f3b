"""What the tenants of a session want to read at each heartbeat, with few requests for many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk.wire import READS_A_REQUEST, KazooException, NoNodeError, Read, UnimplementedError

if TYPE_CHECKING:
    from django_zklock.zk.session import Session

# From so many on they share requests: one costs ten times as much as a read in it.
TOGETHER = 16

Reply = Callable[[Any, "KazooException | None"], None]


class Glances:
    """Collected while the tenants are told of a heartbeat, and sent after that; under the session's monitor."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wanted: list[tuple[str, Reply]] = []

    def want(self, path: str, reply: Reply) -> None:
        """Read the node at ``path``; the reply is that of :meth:`~django_zklock.zk.wire.Wire.get`."""
        self._wanted.append((path, reply))

    def send(self) -> None:
        """Ask for all that is wanted."""
        wanted, self._wanted = self._wanted, []
        if len(wanted) < TOGETHER or not self._session.multireads:
            self._ask_for_each(wanted)
            return
        for start in range(0, len(wanted), READS_A_REQUEST):
            some = wanted[start : start + READS_A_REQUEST]
            self._session.wire.read_many([Read(path) for path, _reply in some], partial(self._answered, some))

    def _ask_for_each(self, wanted: Sequence[tuple[str, Reply]]) -> None:
        for path, reply in wanted:
            self._session.wire.get(path, reply)

    def _answered(
        self, wanted: Sequence[tuple[str, Reply]], outcomes: list[Any] | None, error: KazooException | None
    ) -> None:
        if outcomes is None:
            if isinstance(error, UnimplementedError):
                self._session.multireads = False
            self._ask_for_each(wanted)
            return
        for (_path, reply), outcome in zip(wanted, outcomes, strict=True):
            refusal = NoNodeError() if outcome is None else outcome if isinstance(outcome, KazooException) else None
            # Each for itself: an error in one is not to keep the others from hearing.
            self._session.wire.tell(reply, outcome if refusal is None else None, refusal)
