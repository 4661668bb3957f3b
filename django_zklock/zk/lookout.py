"""One look at a line for all of a session who stand in it.

ZooKeeper answers the requests of a connection in their order, so a list that was asked for after a node's creation has
that node in it (Programmer's Guide, "Consistency Guarantees"). It makes no difference who asked: those who ask before
what is queued leaves in one write share a list. A crowd that joins together is told of a line of ten thousand once, and
not ten thousand times. Of a long line only one list is under way at a time, so that those who come one by one share as
well, as soon as lists take longer than the time between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk import identity, nodes
from django_zklock.zk.identity import Identity
from django_zklock.zk.nodes import Node
from django_zklock.zk.order import Order
from django_zklock.zk.wire import KazooException, NodeExistsError, NoNodeError, UnimplementedError, ZnodeStat

if TYPE_CHECKING:
    from django_zklock.zk.rules import Rule
    from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.lookout")

# From so many names on a line is long, and whoever joins it will wait for longer than a list takes.
LONG = 100

Names = Callable[["list[str] | None", "KazooException | None"], None]
"""Takes the names of all who are there, in no order, or what the server answered instead."""
Use = Callable[[Order, "KazooException | None"], None]
"""Takes the line in its true order; or the server's refusal to tell it, and then the line is none."""
Found = Callable[["Identity | None"], None]
"""Takes who somebody is; ``None`` if it does not tell, or is gone."""


class Lookout:
    """What the contenders of one session in the line at ``path`` can share: what they see of it.

    Every method runs under ``session.monitor``, and is followed by one call of what was handed in: none, if the
    connection goes before the answer comes, as all who wait for it will ask again on the next one.
    """

    __slots__ = (
        "__weakref__", "_epoch", "_is_under_way", "_names", "_nodes", "_posted", "_session", "_uses", "_wondered",
        "leader", "path",
    )  # fmt: skip

    def __init__(self, session: Session, path: str) -> None:
        self.path = path
        # One of our session whom nobody stood before when it was granted its lock, and so nobody ever will.
        self.leader: str | None = None
        self._session = session
        # What has been asked, in this epoch of the session, and has not been sent.
        self._epoch = session.epoch
        self._names: list[Names] = []
        self._uses: list[Use] = []
        self._wondered: dict[str, list[Found]] = {}
        self._posted = False
        # A list was sent for, and there is no answer yet.
        self._is_under_way = False
        # Of the newest list, as the next one has mostly the same names.
        self._nodes: dict[str, Node] = {}

    def name_all(self, use: Names) -> None:
        """Ask for the names of all who are there."""
        self._renew()
        self._names.append(use)
        self._post()

    def look(self, use: Use) -> None:
        """Ask who stands in the line, first come first."""
        self._renew()
        self._uses.append(use)
        self._post()

    def watch(self, use: Use, moved: Callable[[bool], None]) -> Callable[[], None]:
        """Do as :meth:`look`, and call ``moved`` once when somebody comes or goes; gives what takes the watch off."""
        return self._session.wire.children(self.path, partial(self._listed, [], [use]), moved)

    def identify(self, name: str, found: Found) -> None:
        """Find out who owns the node of that name."""
        self._renew()
        self._wondered.setdefault(name, []).append(found)
        self._post()

    def find_first(self, rule: Rule, own: str | None, found: Found) -> None:
        """Find out who is first of those who are in the way by ``rule``, but the ``own`` node."""

        def seen(line: Order, refusal: KazooException | None) -> None:
            first = next((node.name for node in line if node.kind in rule.conflicts or rule.limit), None)
            if refusal is None and first is not None and first != own:
                self.identify(first, found)
            else:
                found(None)

        self.look(seen)

    def make_parent(self, data: bytes) -> None:
        """Make the node that the line is below. The creation that follows in the same write tells what matters."""
        self._session.wire.ensure(self.path, data, self._made, container=self._session.containers)

    def _made(self, _value: object, error: KazooException | None) -> None:
        if isinstance(error, UnimplementedError):
            logger.warning("event=no_containers server=%s consequence=idle_parents_stay", self._session.server)
            self._session.containers = False
        elif error is not None and not isinstance(error, NodeExistsError):
            logger.debug("event=ensure_refused path=%s error=%r", self.path, error)

    def read(self, names: Iterable[str]) -> list[Node]:
        """Read the names that we know, in the order of their sequence."""
        known = self._nodes
        read = [(name, known.get(name) or nodes.parse(name)) for name in names]
        self._nodes = {name: node for name, node in read if node is not None}
        return nodes.in_sequence(self._nodes.values())

    def _renew(self) -> None:
        if self._epoch != self._session.epoch:
            # Whoever asked on an earlier connection asks again.
            self._epoch, self._is_under_way = self._session.epoch, False
            self._names, self._uses, self._wondered = [], [], {}

    def _post(self) -> None:
        # What is posted runs last before the write, so everything that is queued until then comes before it.
        if not self._posted:
            self._posted = True
            self._session.post(self._ask)

    def _ask(self) -> None:
        self._posted = False
        if self._epoch != self._session.epoch or not self._session.connected:
            return
        wondered, self._wondered = self._wondered, {}
        for name, found in wondered.items():
            self._session.wire.get(f"{self.path}/{name}", partial(self._identified, found))
        if (self._names or self._uses) and not (self._is_under_way and len(self._nodes) >= LONG):
            names, self._names = self._names, []
            uses, self._uses = self._uses, []
            self._is_under_way = True
            self._session.wire.children(self.path, partial(self._answered, names, uses))

    def _answered(
        self, those: list[Names], uses: list[Use], names: list[str] | None, error: KazooException | None
    ) -> None:
        self._is_under_way = False
        if self._names or self._uses:
            self._post()
        self._listed(those, uses, names, error)

    def _listed(
        self, those: list[Names], uses: list[Use], names: list[str] | None, error: KazooException | None
    ) -> None:
        for each in those:
            _tell(each, names, error)
        if not uses:
            return
        if error is not None and not isinstance(error, NoNodeError):
            self._tell_all(uses, Order(), error)
        else:
            self._order(self.read(names or ()), partial(self._tell_all, uses))

    def _tell_all(self, uses: list[Use], line: Order, refusal: KazooException | None) -> None:
        for use in uses:
            _tell(use, line, refusal)

    def _identified(
        self, those: list[Found], value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None
    ) -> None:
        who = identity.decode(value[0]) if value is not None else None
        for found in those:
            _tell(found, who)

    def _order(self, line: list[Node], use: Use) -> None:
        """Hand on the line in its true order, first come first."""
        if nodes.order_is_safe(line):
            use(Order(line), None)
            return
        logger.warning("event=sequence_end path=%s consequence=ordered_by_czxid", self.path)
        czxids: dict[str, int] = {}
        refusals: list[KazooException] = []
        last = line[-1].name

        def read(name: str, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
            if value is not None:
                czxids[name] = value[1].czxid
            elif error is not None and not isinstance(error, NoNodeError):
                refusals.append(error)
            # Replies come in the order of the requests, so the last one completes the set.
            if name == last:
                there = (node for node in line if node.name in czxids)
                use(Order(sorted(there, key=lambda node: czxids[node.name])), refusals[0] if refusals else None)

        for node in line:
            self._session.wire.get(f"{self.path}/{node.name}", partial(read, node.name))


def _tell(use: Callable[..., None], *news: object) -> None:
    """Call one of several; an error in it must not keep the news from the others."""
    try:
        use(*news)
    except Exception:
        logger.exception("event=look_failed use=%r", use)
