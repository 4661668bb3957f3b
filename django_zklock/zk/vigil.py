"""What a waiter watches of those before it, and what it may conclude when one of them goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from django_zklock.zk import identity
from django_zklock.zk.identity import Identity
from django_zklock.zk.lookout import Lookout
from django_zklock.zk.nodes import Node
from django_zklock.zk.order import Order
from django_zklock.zk.rules import FREE, Outlook, Rule
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat

# Instead of the name of a node: all the names in the line.
THE_LINE = ""


class Watchman(Protocol):
    """Who keeps a vigil, and what it is told."""

    session: Session
    rule: Rule

    def on_clear(self) -> None:
        """All who stood before it are proven to be gone."""

    def on_change(self) -> None:
        """It is time to look again."""

    def on_line(self, line: Order, refusal: KazooException | None, /) -> None:
        """The whole line, which is watched."""

    def on_refusal(self, error: Exception, /) -> None:
        """The server does not let it watch somebody before it."""

    def on_holder(self, holder: Identity | None, /) -> None:
        """Who is first."""


class Sight:
    """A watch on one of those before us, or on the whole line, from the moment that it is asked for."""

    __slots__ = ("name", "owner", "take_off", "vigil")

    def __init__(self, vigil: Vigil, name: str) -> None:
        self.vigil = vigil
        self.name = name
        # Of the node: its session, when the watch is there.
        self.owner: int | None = None
        self.take_off: Callable[[], None] = _nothing

    def __call__(self, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        self.vigil.moved(self, deleted=deleted)


class Vigil:
    """The watches of one waiter on those before it; on its own node it keeps watch itself.

    Every method runs under ``session.monitor``.
    """

    __slots__ = ("_left", "_lookout", "_sights", "_silent", "_turn", "_watchman", "outlook")

    def __init__(self, watchman: Watchman, lookout: Lookout) -> None:
        # What stood before us when we last looked.
        self.outlook = FREE
        self._watchman = watchman
        self._lookout = lookout
        # How many of those watched are not proven to be gone since.
        self._left = 0
        # Those that are to be watched as soon as one of them moves.
        self._turn: tuple[Node, ...] = ()
        # What is watched, by the name of the node. What is not here any more has nothing to tell.
        self._sights: dict[str, Sight] = {}
        # Of a semaphore: the lease before us that will not tell us in time, so that we watch the whole line too.
        self._silent: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there will be nothing to ask when the last of those before us goes."""
        sights = [self._sights.get(node.name) for node in self.outlook.watched]
        return self.outlook.armed and all(sight is not None and sight.owner is not None for sight in sights)

    def keep(self, outlook: Outlook) -> None:
        """Watch what ``outlook`` asks for, and nothing else."""
        self.outlook = outlook
        self._left = len(outlook.watched)
        self._turn = outlook.then
        wanted = {node.name for node in outlook.watched}
        if outlook.children or self._silent in wanted:
            wanted.add(THE_LINE)
        for name in self._sights.keys() - wanted:
            self._sights.pop(name).take_off()
        for name in wanted - self._sights.keys():
            self._watch(name)
        if outlook.first not in wanted:
            self._lookout.identify(outlook.first, self._watchman.on_holder)

    def end(self) -> None:
        """Take all watches off."""
        while self._sights:
            self._sights.popitem()[1].take_off()

    def forget(self) -> None:
        """The connection is gone, and the watches with it."""
        self._sights.clear()

    def _watch(self, name: str) -> None:
        sight = self._sights[name] = Sight(self, name)
        if name == THE_LINE:
            sight.take_off = self._lookout.watch(partial(self._line_seen, sight), sight)
        else:
            wire, path = self._watchman.session.wire, f"{self._lookout.path}/{name}"
            sight.take_off = wire.get(path, partial(self._set, sight), sight)

    def _keeps(self, sight: Sight) -> bool:
        return self._sights.get(sight.name) is sight

    def _line_seen(self, sight: Sight, line: Order, refusal: KazooException | None) -> None:
        if self._keeps(sight):
            self._watchman.on_line(line, refusal)

    def _set(self, sight: Sight, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if not self._keeps(sight):
            return
        if isinstance(error, NoNodeError):
            # It went between the list and the watch.
            self.moved(sight, deleted=True)
        elif error is not None or value is None:
            # Another owner's node that we may not read, and so not watch.
            self._watchman.on_refusal(error or KazooException("a read had no outcome"))
        else:
            sight.owner = value[1].ephemeralOwner
            if sight.name == self.outlook.first:
                self._watchman.on_holder(identity.decode(value[0]))
            if self.outlook.relayed and not self._hears_in_time(*value):
                self._silent = sight.name
                if THE_LINE not in self._sights:
                    self._watch(THE_LINE)

    def _hears_in_time(self, data: bytes, stat: ZnodeStat) -> bool:
        """Whether the lease right before us, which we watch, will tell us when there is something to see."""
        theirs = identity.decode(data)
        # Written to since it was created: it may have come in before we began to watch it.
        return stat.version == 0 and self._watchman.rule.hears_in_time(
            self.outlook.blockers, theirs.limit if theirs is not None else None
        )

    def moved(self, sight: Sight, *, deleted: bool) -> None:
        """Hear that what is watched has changed or gone, and draw the conclusion."""
        if not self._keeps(sight):
            return
        del self._sights[sight.name]
        if sight.name == THE_LINE:
            self._watch(THE_LINE)
        elif deleted and self.outlook.armed and self._is_proof(sight):
            self._left -= 1
            if not self._left:
                self._watchman.on_clear()
        else:
            # In the same write as the list that follows: who is next may let go before that is answered.
            turn, self._turn = self._turn, ()
            for node in turn:
                self._watch(node.name)
            self._watchman.on_change()

    def _is_proof(self, sight: Sight) -> bool:
        """Whether the end of a node that we watch cannot be part of the end of our own session."""
        session, path = self._watchman.session, f"{self._lookout.path}/{sight.name}"
        return sight.owner is not None and (sight.owner != session.id or path in session.departing)


def _nothing() -> None:
    """Take nothing off: the watch is only about to be asked for."""
