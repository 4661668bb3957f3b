"""Several locks at once: all of them or none, and no deadlock whatever the order in which callers name them.

One ``multi`` creates the nodes in all lines. So of any two callers one came first in every line that both stand in,
and the edges of "waits for" all point to earlier transactions: they cannot form a cycle.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from django_zklock.zk import nodes
from django_zklock.zk.claim import Claim, State
from django_zklock.zk.contender import MAX_ENSURES, Contender
from django_zklock.zk.lookout import Lookout
from django_zklock.zk.order import Order
from django_zklock.zk.rules import Rule
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat

logger = logging.getLogger("django_zklock.multilock")


@dataclass(frozen=True)
class Place:
    """One of the lines to stand in: its path, and what its parent node says."""

    path: str
    parent_data: bytes


class Member(Contender):
    """One node of several. It is created and given up with the others only."""

    __slots__ = ("_crowd", "stem")

    def __init__(self, crowd: MultiContender, place: Place, *, data: bytes, wait: bool, guid: str) -> None:
        super().__init__(
            crowd.session,
            place.path,
            crowd.rule,
            data=data,
            parent_data=place.parent_data,
            wait=wait,
            notify=crowd.look_around,
        )
        self.stem = f"{place.path}/{nodes.prefix(guid, crowd.rule.kind)}"
        self._crowd = crowd

    def admit(self, node: str, token: int) -> None:
        """Take up the node that was created; the line is listed by a request that is under way or follows."""
        self.state = State.JOINING
        self.node, self.token = node, token
        self.session.attach(self)

    def listing(self) -> None:
        """Ask who stands in the line."""
        self._look_at_line()

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. Until all are held this one is a place and no more, and lives as long as its node."""
        if self._crowd.state is State.HELD:
            super().lose(reason)

    def _lose_node(self) -> None:
        if self._crowd.state is State.HELD:
            super()._lose_node()
        else:
            # Only a place so far: it must not count as held while somebody is asked why it is gone.
            self._finish()

    def _enter(self) -> None:
        self._crowd.start_again()

    def _start_again(self) -> None:
        self._crowd.start_again()


class MultiContender(Claim):
    """One attempt at several locks. ``state`` is HELD when every member holds."""

    __slots__ = (
        "_creating", "_ensures", "_full", "_guid", "_leaving", "_lookouts", "_members", "_places", "_round",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        places: Sequence[Place],
        rule: Rule,
        *,
        data: bytes,
        wait: bool,
        notify: Callable[[], None],
    ) -> None:
        super().__init__(session, rule, data=data, wait=wait, notify=notify)
        self._places = places
        self._lookouts = [session.lookout(place.path) for place in places]
        # The line that is too full for us, if we are not to wait.
        self._full = self._lookouts[0]
        self._members: list[Member] = []
        # Those of earlier rounds, and all of them once we leave, until their nodes are surely gone.
        self._leaving: list[Member] = []
        self._guid = ""
        self._creating = False
        self._round = 0
        self._ensures = 0

    def __repr__(self) -> str:
        return f"<MultiContender {self.state.value} {' '.join(place.path for place in self._places)}>"

    @property
    def node_paths(self) -> dict[str, str]:
        """The full path of the node in each line, by the path of the line."""
        return {path: node for member in self._members for path, node in member.node_paths.items()}

    @property
    def revoked(self) -> str | None:
        """Why somebody asks us to let go of one of the locks."""
        return next((member.revoked for member in self._members if member.revoked is not None), None)

    # What fronts post.

    def leave(self) -> None:
        """Give up every place; the nodes are deleted now or as soon as there is a connection."""
        if self.state is State.NEW:
            self.state = State.GONE
        elif self.state not in {State.LEAVING, State.GONE}:
            self.state = State.LEAVING
            self._scatter()
            self._finish_if_gone()

    def look(self) -> None:
        """Find out who is in the way; ``looks`` grows when the answer is there."""
        blocked = next((member for member in self._members if member.state is not State.HELD), None)
        if blocked is not None:
            blocked.look()
        elif self.session.connected:
            self._full.find_first(self.rule, None, self._holder_found)

    def locate(self, found: Callable[[int | None], None]) -> None:
        """Find out how many stand in the way in the line where most do, and call ``found`` with that."""
        members, counts = self._members, list[int]()
        waiting = len(members)

        def located(count: int | None) -> None:
            nonlocal waiting
            waiting -= 1
            counts.extend([] if count is None else [count])
            if not waiting:
                found(max(counts, default=None))

        for member in members:
            member.locate(located)
        if not members:
            found(None)

    # What the session says. The members are told for themselves, after us.

    def suspended(self) -> None:
        """The connection is gone, and with it every reply."""
        self._round += 1

    def resumed(self) -> None:
        """There is a connection again; if a creation was under way, see whether it happened."""
        if self._creating:
            self._search()
        elif self.state is State.JOINING and not self._members:
            self._enter()

    def session_ended(self, reason: str) -> None:
        """The session is gone, and its nodes with it."""
        self.suspended()
        self._creating = False
        if self.state is State.HELD:
            self.lose(reason)
        elif self.state in {State.JOINING, State.WAITING}:
            self._scatter()
            self.state = State.JOINING
        self._finish_if_gone()

    def heartbeat(self) -> None:
        """Nothing of our own: each member reads its node."""

    # What the members say.

    def look_around(self) -> None:
        """See what the members have come to."""
        if self.state in {State.LEAVING, State.GONE}:
            self._finish_if_gone()
            return
        if self.state is State.HELD:
            lost = [member for member in self._members if member.lost is not None]
            if lost and (self.lost is None or self.asking_why):
                known = next((member for member in lost if not member.asking_why), None)
                self.lost, self.asking_why = (known or lost[0]).lost, known is None
            if lost or self.revoked is not None:
                self._notify()
            return
        for member in self._members:
            if member.error is not None or member.busy:
                self.error, self.busy, self._full = member.error, member.busy, member.lookout
                self._give_up()
                return
            if member.state is State.GONE:
                self.start_again()
                return
        if self._members and all(member.state is State.HELD for member in self._members):
            self.state = State.HELD
            self._notify()
        elif any(member.state is State.WAITING for member in self._members):
            blocked = next(member for member in self._members if member.state is State.WAITING)
            self.state = State.WAITING
            self.holder, self.looks = blocked.holder, sum(member.looks for member in self._members)
            self._notify()

    def start_again(self) -> None:
        """A place was lost, and the others are worth nothing without it: a new one would stand too far behind."""
        if self.state in {State.JOINING, State.WAITING}:
            logger.warning("event=places_lost paths=%s", " ".join(place.path for place in self._places))
            self._scatter()
            self.state = State.JOINING
            if self.session.connected:
                self._enter()

    # Getting in.

    def _enter(self) -> None:
        self._round += 1
        if self.wait:
            self._create()
            return
        waiting = len(self._lookouts)

        def peeked(asked: int, lookout: Lookout, names: list[str] | None, error: KazooException | None) -> None:
            nonlocal waiting
            if asked != self._round or self.state is not State.JOINING or self.busy:
                return
            if error is not None and not isinstance(error, NoNodeError):
                self._fail(error)
                return
            waiting -= 1
            if self.rule.is_full(Order(lookout.read(names or ()))):
                self.busy, self._full = True, lookout
                self._give_up()
            elif not waiting:
                self._create()

        for lookout in self._lookouts:
            lookout.name_all(partial(peeked, self._round, lookout))

    def _create(self) -> None:
        self._guid = str(uuid.uuid4())
        self._creating = True
        members = self._make_members()
        wire = self.session.wire
        wire.create_all([member.stem for member in members], self._data, partial(self._created, self._round, members))
        for member in members:
            member.listing()

    def _make_members(self) -> list[Member]:
        return [Member(self, place, data=self._data, wait=self.wait, guid=self._guid) for place in self._places]

    def _created(
        self,
        asked: int,
        members: list[Member],
        value: tuple[list[str], int] | None,
        error: KazooException | None,
    ) -> None:
        if asked != self._round:
            return
        self._creating = False
        if value is not None:
            self._admit(members, *value)
        elif self.state is State.LEAVING:
            self._finish_if_gone()
        elif isinstance(error, NoNodeError) and self._ensures < MAX_ENSURES:
            self._ensures += 1
            self._round += 1
            for lookout, place in zip(self._lookouts, self._places, strict=True):
                lookout.make_parent(place.parent_data)
            self._create()
        else:
            self._fail(error or KazooException("create had no outcome"))

    def _admit(self, members: list[Member], names: list[str], token: int) -> None:
        self._ensures = 0
        self.token = token
        self._members = members
        for member, name in zip(members, names, strict=True):
            member.admit(name, token)
        if self.state is State.LEAVING:
            self._scatter()
            self._finish_if_gone()

    # After a reconnect with a creation under way: did it happen?

    def _search(self) -> None:
        found: dict[str, str] = {}
        refusals: list[KazooException] = []
        waiting = len(self._lookouts)

        def searched(asked: int, path: str, names: list[str] | None, error: KazooException | None) -> None:
            nonlocal waiting
            if asked != self._round:
                return
            if error is not None and not isinstance(error, NoNodeError):
                refusals.append(error)
            found.update((path, name) for name in names or () if self._guid in name)
            # In any order: somebody else may have asked for one of the lists before us.
            waiting -= 1
            if not waiting:
                self._searched(found, refusals)

        for lookout in self._lookouts:
            self.session.wire.sync(lookout.path)
            lookout.name_all(partial(searched, self._round, lookout.path))

    def _searched(self, found: dict[str, str], refusals: list[KazooException]) -> None:
        if len(found) == len(self._places):
            path, name = next(iter(found.items()))
            self.session.wire.get(f"{path}/{name}", partial(self._found, self._round, found))
            return
        # None was made; or somebody has removed some, and the rest is of no use.
        self._remove(found)
        if refusals:
            self._fail(refusals[0])
        elif self.state is State.JOINING:
            self._enter()

    def _found(
        self,
        asked: int,
        found: dict[str, str],
        value: tuple[bytes, ZnodeStat] | None,
        _error: KazooException | None,
    ) -> None:
        if asked != self._round:
            return
        if value is None or value[1].ephemeralOwner != self.session.id:
            self._remove(found)
            if self.state is State.JOINING:
                self._enter()
            return
        self._creating = False
        members = self._make_members()
        self._admit(members, [found[member.path] for member in members], value[1].czxid)
        if self.state is State.JOINING:
            for member in members:
                member.listing()

    def _remove(self, found: dict[str, str]) -> None:
        """Give up what is left of a creation, also if the connection goes again before it is deleted."""
        self._creating = False
        self._members = [member for member in self._make_members() if member.path in found]
        for member in self._members:
            member.admit(found[member.path], 0)
        self._scatter()
        self._finish_if_gone()

    # Getting out.

    def _scatter(self) -> None:
        """Have all members leave."""
        members, self._members = self._members, []
        self._leaving += members
        for member in members:
            member.leave()
        self._leaving = [member for member in self._leaving if member.state is not State.GONE]

    def _finish_if_gone(self) -> None:
        self._leaving = [member for member in self._leaving if member.state is not State.GONE]
        if self.state is State.LEAVING and not self._leaving and not self._creating:
            self._finish()
