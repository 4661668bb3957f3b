"""The heart: one node in one line, as a state machine driven by callbacks.

Nothing here blocks, polls or owns a thread. Blocking callers, asyncio and whoever else waits for a lock are
thin users of the :class:`~.claim.Claim` that this is: they post what they want, and ``notify`` tells them that there
is something new to see. The recipe is Curator's (ZooKeeper Recipes, "Locks"); which nodes a waiter watches is said in
:mod:`~django_zklock.zk.rules`.

::

    NEW --join--> JOINING --created, listed--> HELD   (nobody ahead)
                    |  ^                        WAITING --who stood ahead is gone--> HELD
                    |  '--node gone, session gone--'
                    '--leave, failure, busy--> LEAVING --deleted--> GONE
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from functools import partial

from django_zklock.zk import display, label, nodes, revocation
from django_zklock.zk.claim import Claim, State, Unavailable
from django_zklock.zk.identity import Identity
from django_zklock.zk.order import Order
from django_zklock.zk.rules import FREE, LEASES, Outlook, Rule
from django_zklock.zk.session import Session
from django_zklock.zk.vigil import Vigil
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat

__all__ = ["MAX_ENSURES", "NODE_DELETED", "Contender", "State", "Unavailable"]

logger = logging.getLogger("django_zklock.contender")

# Parents may be reaped between their making and our create; more often than this it is something else.
MAX_ENSURES = 5

NODE_DELETED = "its node was deleted"


class Contender(Claim):
    """One attempt at one lock. ``node`` is the name of its node, when it has one."""

    __slots__ = (
        "_creating", "_ensures", "_guid", "_looking", "_parent_data", "_round", "_sees_itself", "_sole_waiter",
        "_telling", "_vigil", "_watches_itself",
        "lookout", "node", "path", "revoked",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        path: str,
        rule: Rule,
        *,
        data: bytes,
        parent_data: bytes = b"",
        wait: bool,
        sole_waiter: bool = False,
        notify: Callable[[], None],
    ) -> None:
        super().__init__(session, rule, data=data, wait=wait, notify=notify)
        self.path = path
        self.node: str | None = None
        self.revoked: str | None = None
        self._parent_data = parent_data
        # Not to wait if somebody else of our kind does.
        self._sole_waiter = sole_waiter
        self.lookout = session.lookout(path)
        self._vigil = Vigil(self, self.lookout)
        self._guid = ""
        # A create was sent and its outcome is not known.
        self._creating = False
        # Grows whenever earlier replies and watch events have lost their meaning.
        self._round = 0
        # The round in which a look at the line is under way, which has not been answered.
        self._looking: int | None = None
        self._ensures = 0
        # The watch on our own node: asked for, and there.
        self._watches_itself = False
        self._sees_itself = False
        # We hold, and who stands behind us may not know it yet.
        self._telling = False

    def __repr__(self) -> str:
        return f"<Contender {self.state.value} {self.path}/{self.node or '?'}>"

    @property
    def node_paths(self) -> dict[str, str]:
        """The full path of the node in each line, by the path of the line."""
        return {self.path: self._own_path}

    @property
    def is_next(self) -> bool:
        """Whether it waits, and will hold as soon as it hears that whoever is before it is gone."""
        return self.state is State.WAITING and self._sees_itself and self._vigil.is_ready

    # What fronts post.

    def leave(self) -> None:
        """Give up the place or the hold; the node is deleted now or as soon as there is a connection."""
        if self.state is State.NEW:
            self.state = State.GONE
        elif self.state not in {State.LEAVING, State.GONE}:
            self.state = State.LEAVING
            self._vigil.end()
            if self.node is not None:
                self._delete()
            elif not self._creating:
                self._finish()

    def look(self) -> None:
        """Find out who is first in the line now; ``looks`` grows when the answer is there."""
        if self.session.connected:
            self.lookout.find_first(self.rule, self.node, self._holder_found)

    def locate(self, found: Callable[[int | None], None]) -> None:
        """Find out how many stand in the way now, and call ``found`` with that."""
        if self.session.connected:
            self.lookout.look(lambda line, _refusal: found(self._blockers(line)))
        else:
            found(None)

    def _blockers(self, line: Order) -> int | None:
        return self.rule.outlook(self.node, line).blockers if self.node is not None and self.node in line else None

    # What the session says.

    def suspended(self) -> None:
        """The connection is gone, and with it every reply and watch."""
        self._round += 1
        self._vigil.forget()
        self._watches_itself = self._sees_itself = False
        if self.state is State.HELD and self.asking_why:
            # Whether somebody has said why is not worth waiting for a connection.
            self._finish()

    def resumed(self) -> None:
        """There is a connection again. Whatever was unknown is asked for, after a sync."""
        wire = self.session.wire
        if self._creating:
            wire.sync(self.path)
            self.lookout.name_all(partial(self._searched, self._round))
        elif self.state in {State.JOINING, State.WAITING} and self.node is not None:
            wire.sync(self.path)
            self._look_at_line()
        elif self.state is State.JOINING:
            self._enter()
        elif self.state is State.HELD:
            wire.sync(self.path)
            self._verify()
            if self._telling:
                self._tell_next()
        elif self.state is State.LEAVING:
            self._delete()

    def session_ended(self, reason: str) -> None:
        """The session is gone, and its nodes with it."""
        self.suspended()
        if self.state is State.HELD:
            self.lose(reason)
        self.node = None
        self._creating = False
        if self.state in {State.HELD, State.LEAVING}:
            self._finish()
        elif self.state is State.WAITING:
            self.state = State.JOINING

    def heartbeat(self) -> None:
        """Read the held node: the answer renews the lease and proves that the node is still ours."""
        if self.state is State.HELD:
            self.session.glances.want(self._own_path, partial(self._verified, self._round))

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. The node stays until the holder leaves: its work may still be running."""
        if self.state is State.HELD and self.lost is None:
            # A process that ends while it holds has chosen to.
            level = logging.INFO if self.session.closing else logging.WARNING
            logger.log(level, "event=lost path=%s node=%s reason=%s", self.path, self.node, reason)
            super().lose(reason)

    # Getting in.

    def _enter(self) -> None:
        self._round += 1
        if self.wait:
            self._create()
        else:
            # A busy lock then costs no write and leaves no trace.
            self.lookout.name_all(partial(self._peeked, self._round))

    def _peeked(self, asked: int, names: list[str] | None, error: KazooException | None) -> None:
        if asked != self._round or self.state is not State.JOINING:
            return
        if error is None and self.rule.is_full(Order(self.lookout.read(names or ()))):
            self.busy = True
            self._give_up()
        elif error is None or isinstance(error, NoNodeError):
            self._create()
        else:
            self._fail(error)

    def _create(self) -> None:
        # A GUID for each attempt: a node that turns up late is never taken for the new one.
        self._guid = str(uuid.uuid4())
        self._creating = True
        stem = f"{self.path}/{nodes.prefix(self._guid, self.rule.kind)}"
        self.session.wire.create(stem, self._data, partial(self._created, self._round))
        self._look_at_line()

    def _created(self, asked: int, value: tuple[str, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._round:
            return
        self._creating = False
        if value is not None:
            self._adopt(*value)
        elif self.state is State.LEAVING:
            self._finish()
        elif isinstance(error, NoNodeError) and self._ensures < MAX_ENSURES:
            self._ensures += 1
            self._round += 1
            self.lookout.make_parent(self._parent_data)
            self._create()
        else:
            self._fail(error or KazooException("create had no outcome"))

    def _adopt(self, node: str, stat: ZnodeStat) -> None:
        self.node = node
        self.token = stat.czxid
        self._ensures = 0
        self._guid = ""
        if self.state is State.LEAVING:
            self._delete()

    # After a reconnect with a create under way: did it happen?

    def _searched(self, asked: int, names: list[str] | None, error: KazooException | None) -> None:
        if asked != self._round:
            return
        if error is not None and not isinstance(error, NoNodeError):
            self._creating = False
            self._fail(error)
            return
        mine = next((name for name in names or () if self._guid in name), None)
        if mine is None:
            self._not_there()
        else:
            self.session.wire.get(f"{self.path}/{mine}", partial(self._found, self._round, mine))

    def _found(
        self, asked: int, node: str, value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None
    ) -> None:
        if asked != self._round:
            return
        if value is None:
            self._not_there()
        elif value[1].ephemeralOwner != self.session.id:
            # Of a session that is over: the server will remove it, but not before others have waited for it.
            self.session.wire.delete(f"{self.path}/{node}", lambda _value, _error: None)
            self._not_there()
        else:
            self._creating = False
            self._adopt(node, value[1])
            if self.state is State.JOINING:
                self._look_at_line()

    def _not_there(self) -> None:
        self._creating = False
        if self.state is State.LEAVING:
            self._finish()
        else:
            self._enter()

    # In the line.

    def _look_at_line(self) -> None:
        self._looking = self._round
        self.lookout.look(partial(self._looked, self._round))

    def _looked(self, asked: int, line: Order, refusal: KazooException | None) -> None:
        if asked == self._round:
            self._looking = None
            self.on_line(line, refusal)

    def on_line(self, line: Order, refusal: KazooException | None) -> None:
        """Judge what stands in the line now."""
        if self.node is None or self.state not in {State.JOINING, State.WAITING}:
            return
        if refusal is not None:
            # Perhaps of another owner's node that we may not read, and that may stand before us.
            self._fail(refusal)
        elif self.node not in line:
            self._start_again()
        else:
            outlook = self.rule.outlook(self.node, line)
            if outlook is FREE:
                self._grant(followed=self.rule.limit is not None and line.of(LEASES)[-1].name != self.node)
            elif self.wait and self._sole_waiter and self.state is State.JOINING:
                self._wait_alone(outlook, self.rule.awaited(self.node, line))
            elif self.wait:
                self._wait_in_line(outlook)
            else:
                self.busy = True
                self._give_up()

    def _grant(self, *, followed: bool) -> None:
        """Hold; ``followed`` says that another lease may stand behind ours already."""
        if self.session.lease_over:
            # This process slept after the answer was sent: somebody else may hold by now. Ask again; a fresh
            # answer renews the lease, and no answer suspends the session.
            self._look_at_line()
            return
        self.state = State.HELD
        self._vigil.end()
        if self.rule.excludes_all:
            self.lookout.leader = self.node
        if followed and self.rule.limit is not None:
            self._tell_next()
        self._notify()

    def _tell_next(self) -> None:
        """Have the lease behind us look: it cannot see that we are in, and that the next to go makes room for it.

        Only if nobody has written to our node before, such as the wish that we let go: whoever stands behind us has
        heard of that, and relies on us no longer.
        """
        self._telling = True
        self.session.wire.set(self._own_path, self._data, partial(self._told, self._round), version=0)

    def _told(self, asked: int, _value: object, _error: KazooException | None) -> None:
        if asked == self._round:
            self._telling = False

    def _wait_in_line(self, outlook: Outlook) -> None:
        self.state = State.WAITING
        if not self._watches_itself:
            self._watch_itself()
        self._vigil.keep(outlook)

    def _wait_alone(self, outlook: Outlook, proof: tuple[str, ...]) -> None:
        """Wait in line; but if others prove that somebody else does, leave while they do."""
        if proof:
            # Both in one transaction: who was in the way of that other may be gone by now, and then it waits no more.
            others = [f"{self.path}/{name}" for name in proof]
            self.session.wire.delete_while(self._own_path, others, partial(self._yielded, self._round))
        else:
            self._wait_in_line(outlook)

    def _yielded(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._round or self.state is not State.JOINING:
            return
        if error is None:
            self.node = None
            self.busy = True
            self._give_up()
        elif isinstance(error, NoNodeError):
            self._look_at_line()
        else:
            # Somebody's node that we may not ask about, and so could not watch either.
            self._fail(error)

    # What the vigil says.

    def on_clear(self) -> None:
        """Hold at once, if the events of the watches prove as much as a look at the line would.

        Nobody joins before us, so those who stood there are all there were. But they prove nothing about us if our own
        node may be gone too, or if this process has slept since.
        """
        if self.session.lease_fresh and self._sees_itself:
            self._grant(followed=True)
        else:
            self.on_change()

    def on_change(self) -> None:
        """Look at the line, unless the answer of a look that is under way is still to come, and so newer than this."""
        if self._looking != self._round:
            self._looking = self._round
            # The same event may be the grant of the one before us, if that is of our session.
            self.session.post(partial(self._look_again, self._round))

    def _look_again(self, asked: int) -> None:
        if asked != self._round or self.state is not State.WAITING:
            return
        turn = self._vigil.outlook.then
        if self.rule.limit is None and turn and turn[0].name == self.lookout.leader:
            # Nobody is left before that one, and it is the last before us.
            self._looking = None
            self._vigil.keep(Outlook(1, turn[0].name, turn, armed=True))
        else:
            self._look_at_line()

    def on_refusal(self, error: Exception) -> None:
        """Give up: who may not watch cannot wait."""
        self._fail(error)

    def on_holder(self, holder: Identity | None) -> None:
        """Keep who is first."""
        self._holder_found(holder)

    def _start_again(self) -> None:
        """Our node vanished while we waited: removed by an operator, or with the whole parent."""
        logger.warning("event=place_lost path=%s node=%s", self.path, self.node)
        self.node = None
        self.state = State.JOINING
        self._vigil.end()
        self._watches_itself = self._sees_itself = False
        self._enter()

    # The own node.

    @property
    def _own_path(self) -> str:
        return f"{self.path}/{self.node}"

    def _watch_itself(self) -> None:
        self._watches_itself = True
        # Never taken off: it goes with the node.
        self.session.wire.get(
            self._own_path, partial(self._itself_watched, self._round), partial(self._disturbed, self._round)
        )

    def _itself_watched(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked == self._round:
            self._sees_itself = value is not None
            self._verified(asked, value, error)

    def _disturbed(self, asked: int, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        if asked != self._round or self.state not in {State.WAITING, State.HELD}:
            return
        self._watches_itself = self._sees_itself = False
        if not deleted:
            self._watch_itself()
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self._lose_node()

    def _heed(self, data: bytes) -> None:
        reason = revocation.reason(data) if self.revoked is None else None
        if reason is not None:
            logger.warning("event=revoked path=%s node=%s reason=%r", self.path, self.node, reason)
            self.revoked = reason
            self._notify()

    def _lose_node(self) -> None:
        """Lose the lock, at once for whoever looks; that is told when it is known whether somebody has said why."""
        if self.asking_why:
            return
        if self.lost is not None:
            # That was told for another reason.
            self._finish()
            return
        self.asking_why, self.lost = True, NODE_DELETED
        self._notify()
        logger.warning("event=lost path=%s node=%s reason=%s", self.path, self.node, self.lost)
        self.session.wire.get(self.path, partial(self._explained, self._round))

    def _explained(self, asked: int, value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None) -> None:
        if asked != self._round or self.state is not State.HELD:
            return
        written = label.decode(value[0]) if value is not None else None
        if written is not None and written.removal is not None and written.removal.node == self.node:
            self.lost = f"{NODE_DELETED}: {display.visible(written.removal.why)}"
        self._finish()

    def _verify(self) -> None:
        self.session.wire.get(self._own_path, partial(self._verified, self._round))

    def _verified(self, asked: int, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if asked != self._round or self.state not in {State.WAITING, State.HELD}:
            return
        if value is not None and value[1].ephemeralOwner == self.session.id:
            self._heed(value[0])
            return
        if value is None and not isinstance(error, NoNodeError):
            logger.warning("event=unverified path=%s node=%s error=%r", self.path, self.node, error)
        elif self.state is State.WAITING:
            self._start_again()
        else:
            self._lose_node()

    # Getting out.

    def _delete(self) -> None:
        if self.session.connected:
            self.session.departing.add(self._own_path)
            self.session.wire.delete(self._own_path, partial(self._deleted, self._round))

    def _deleted(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._round:
            return
        if error is not None and not isinstance(error, NoNodeError):
            logger.error("event=delete_refused path=%s node=%s error=%r", self.path, self.node, error)
        self._finish()

    def _finish(self) -> None:
        self.session.departing.discard(self._own_path)
        super()._finish()
