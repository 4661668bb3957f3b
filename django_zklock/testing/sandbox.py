"""What one test has for itself: a part of a server's tree, and a project that talks to nothing else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from django_zklock import conf
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.zk import holds
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

from . import acl, project
from .faults import Faults
from .requestlog import RequestLog
from .server import SessionInfo, ZooKeeperServer
from .tree import Created, Deleted

if TYPE_CHECKING:
    from typing_extensions import Self

# How often somebody looks who waits for the holder to know of its loss.
LOOK = 0.005
# Seconds for somebody else to take a lock that is free.
PATIENCE = 5.0

_numbers = itertools.count(1)


class Sandbox:
    """A context manager in which a project's locks are on a server for tests, below a ``root`` of their own.

    Inside, every alias of ``ZKLOCK`` is at that server. At the end faults are healed, a server that was stopped
    is started again, locks that this thread has left held are released, and the setting is put back, and with that
    the project's sessions closed; nodes below the root are removed, and sessions ended that began inside and whose
    client is gone.
    Without a configured Django project it gives a server and a root, and no more.
    """

    def __init__(self, server: ZooKeeperServer | None = None) -> None:
        """Take the server to use; without one the sandbox has its own."""
        self.root = f"/test-{next(_numbers)}"
        self.server = server or ZooKeeperServer()
        self._owned = server is None
        self._earlier: set[int] = set()
        self._undo = ExitStack()

    @property
    def hosts(self) -> str:
        """The server's address as clients write it, ``host:port``."""
        return self.server.hosts

    @property
    def faults(self) -> Faults:
        """The server's faults."""
        return self.server.faults

    @property
    def requests(self) -> RequestLog:
        """What clients have asked for since the sandbox began."""
        return self.server.requests

    def sessions(self) -> list[SessionInfo]:
        """Give the sessions that live, oldest first."""
        return self.server.sessions()

    def owner(self, path: str) -> int:
        """Give the session that an ephemeral node, as ``Held.node``, belongs to; raise LookupError if there is none."""
        return self.server.owner(path)

    def paths(self) -> list[str]:
        """Give the paths of the nodes below the root, sorted."""
        return self.server.paths(self.root)

    @contextmanager
    def held_elsewhere(self, key: str, *, using: str = DEFAULT_ALIAS) -> Iterator[Held]:
        """Have somebody else hold a lock: with a session of its own, as another process would.

        Raises LockTimeout if the lock is not free.
        """
        # In a thread of its own: who acquires a lock holds it, and the calling thread must not.
        with closing(Pool("elsewhere", self._options(using))) as pool, ThreadPoolExecutor(1) as thread:
            lock = Lock(key, pool, work=lambda: Work(kind="label", name="somebody else"))
            yield thread.submit(lock.acquire, PATIENCE).result()

    def lose(self, held: Held, timeout: float = PATIENCE) -> None:
        """Expire the session of a lock, and wait until its holder knows, for seconds; raise TimeoutError.

        Everything else in that session goes with it. Raises LookupError if the lock is not held.
        """
        self.faults.expire(self.owner(held.node))
        deadline = time.monotonic() + timeout
        while not held.lost:
            if time.monotonic() > deadline:
                msg = f"lock {held.key!r} has no session any more, and after {timeout:g} s its holder does not know"
                raise TimeoutError(msg)
            time.sleep(LOOK)

    def __enter__(self) -> Self:
        """Begin, with an empty root and no requests."""
        with ExitStack() as undo:
            if self._owned:
                undo.callback(self.server.close)
            self.server.start()
            self.server.call(self._prepare)
            undo.callback(self.server.call, self._clean)
            if project.configured():
                undo.enter_context(project.redirected(self.hosts, self.root))
            undo.callback(self._empty_hands, len(holds.stack()))
            # First of all at the end: sessions cannot be closed through a black hole.
            undo.callback(self._mend)
            self.requests.clear()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Mend the server, put the setting back, and leave nothing behind."""
        self._undo.close()

    def _options(self, alias: str) -> PoolOptions:
        if project.configured():
            return conf.options(alias)
        return PoolOptions(connection=ConnectionOptions(hosts=self.hosts), root=self.root)

    def _mend(self) -> None:
        self.server.start()
        self.faults.heal()

    def _empty_hands(self, before: int) -> None:
        """Let go of what this thread has left held, so that the next test does not find it with ``current_lock``."""
        for held in reversed(holds.stack()[before:]):
            held.release()

    def _prepare(self) -> None:
        service = self.server.service
        self._earlier = {session.id for session in service.sessions}
        service.commit(Created(self.root, b"", acl.OPEN, 0))

    def _clean(self) -> None:
        service = self.server.service
        for session in list(service.sessions):
            # Others may be somebody's whose fixture lasts longer than this test.
            if session.link is None and session.id not in self._earlier:
                service.end(session)
        below = sorted(service.newest.tree.descendants(self.root), reverse=True)
        service.commit(*map(Deleted, [*below, self.root]))
