"""The sandbox of one test: a part of a server's tree, and the project's locks on this server only."""

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
from django_zklock.zk.held import Held, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.waiting import Deadline
from django_zklock.zk.wire import ConnectionOptions

from . import redirect_settings
from .server import acl
from .server.faults import Fault, Faults
from .server.network import Cut
from .server.requestlog import RequestLog
from .server.server import SessionInfo, ZooKeeperServer
from .server.tree import Created, Deleted

if TYPE_CHECKING:
    from typing import Self

# Seconds between two checks whether a holder has noticed the loss of its lock.
POLL_INTERVAL = 0.005
# Seconds in which another contender must get a free lock, and a holder notice a loss.
TIMEOUT = 30.0

_numbers = itertools.count(1)


class Sandbox:
    """A context manager that puts a project's locks on a test server, below its own ``root``.

    Inside, every alias of ``ZKLOCK`` points to this server. At the end the faults that began inside are healed, a
    stopped server is started again, and locks that this thread has acquired inside and still holds are released. The
    setting is restored, which closes the project's sessions. Nodes below the root are removed, and sessions that were
    opened inside and have no connection are ended. Without a configured Django project it provides only the server and
    the root.

    Sandboxes may be nested, also on one server. A lock that the thread holds at the beginning stays held, on its own
    server, and does not concern the locks inside.
    """

    requests: RequestLog
    """The requests of clients since the start of the sandbox."""

    def __init__(self, server: ZooKeeperServer | None = None) -> None:
        """Use this server; without one the sandbox starts its own."""
        self.root = f"/test-{next(_numbers)}"
        self.server = server or ZooKeeperServer()
        self.requests = RequestLog()
        self._owned = server is None
        self._earlier: set[int] = set()
        self._earlier_faults: list[Fault | Cut] = []
        self._undo = ExitStack()

    @property
    def hosts(self) -> str:
        """The server's address, ``host:port``."""
        return self.server.hosts

    @property
    def faults(self) -> Faults:
        """The server's faults."""
        return self.server.faults

    def sessions(self) -> list[SessionInfo]:
        """Return the open sessions, oldest first."""
        return self.server.sessions()

    def owner(self, path: str) -> int:
        """Return the session of an ephemeral node, such as ``Held.node``; raise LookupError if there is none."""
        return self.server.owner(path)

    def paths(self) -> list[str]:
        """Return the paths of the nodes below the root, sorted."""
        return self.server.paths(self.root)

    @contextmanager
    def held_elsewhere(self, key: str, *, using: str = DEFAULT_ALIAS) -> Iterator[Held]:
        """Let another holder have a lock, with a separate session, like another process.

        Raises LockTimeout if the lock is not free.
        """
        # In a separate thread: the thread that acquires a lock holds it, and the calling thread must not.
        with closing(Pool("elsewhere", self._options(using))) as pool, ThreadPoolExecutor(1) as thread:
            lock = Lock(key, pool, work=lambda: Work(kind="label", name="somebody else"))
            # This reference keeps the lock held: the call that acquired it has ended.
            held = thread.submit(lock.acquire, TIMEOUT).result()
            yield held

    def lose(self, held: Held, timeout: float = TIMEOUT) -> None:
        """Expire the session of a lock, and wait until its holder has noticed; ``timeout`` is in seconds.

        All other nodes of the session are lost too. Raises TimeoutError, and LookupError if the lock is not held.
        """
        self.faults.expire(self.owner(held.node))
        deadline = Deadline.after(timeout)
        while not held.lost:
            if deadline.passed:
                msg = f"the session of lock {held.key!r} has expired, but its holder has not noticed in {timeout:g} s"
                raise TimeoutError(msg)
            time.sleep(POLL_INTERVAL)

    def __enter__(self) -> Self:
        """Start with an empty root and an empty request log."""
        with ExitStack() as undo:
            if self._owned:
                undo.callback(self.server.close)
            self.server.start()
            self.server.call(self._prepare)
            undo.callback(self.server.call, self._clean)
            if redirect_settings.configured():
                undo.enter_context(redirect_settings.redirected(self.hosts, self.root))
            undo.callback(self._release_since, len(held_stack()))
            # This runs first at the end: sessions cannot be closed through a black hole.
            undo.callback(self._heal)
            self.requests.clear()
            undo.enter_context(self.server.requests.copied_to(self.requests))
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Heal the server, restore the setting, and remove nodes and sessions."""
        self._undo.close()

    def _options(self, alias: str) -> PoolOptions:
        if redirect_settings.configured():
            return conf.options(alias)
        return PoolOptions(connection=ConnectionOptions(hosts=self.hosts), root=self.root)

    def _heal(self) -> None:
        self.server.start()
        self.faults.heal(keep=self._earlier_faults)

    def _release_since(self, before: int) -> None:
        """Release the locks that this thread still holds, so that ``current_lock`` of the next test is empty."""
        for held in reversed(held_stack()[before:]):
            held.release()

    def _prepare(self) -> None:
        service = self.server.service
        self._earlier = {session.id for session in service.sessions}
        self._earlier_faults = self.faults.active()
        service.commit(Created(self.root, b"", acl.OPEN, 0))

    def _clean(self) -> None:
        service = self.server.service
        for session in list(service.sessions):
            # Other sessions may belong to a fixture with a longer scope than this test.
            if session.link is None and session.id not in self._earlier:
                service.end(session)
        below = sorted(service.newest.tree.descendants(self.root), reverse=True)
        service.commit(*map(Deleted, [*below, self.root]))
