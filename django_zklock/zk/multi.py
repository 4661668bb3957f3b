"""A contender for the locks of several keys: all of them or none, without deadlocks whatever the order of the keys.

One transaction creates the nodes in all queues. So of any two contenders one is first in every queue that has both, and
every edge of "waits for" points to an earlier transaction: the edges cannot form a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk import node_data, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.creation import Created, LockPath
from django_zklock.zk.listing import SharedListing, shared_listing
from django_zklock.zk.queue import Queue, name_prefix, new_guid
from django_zklock.zk.rules import Rule, WatchPlan
from django_zklock.zk.session import Session
from django_zklock.zk.single import SingleContender
from django_zklock.zk.wire import ConnectionOptions

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.multi")


def data_room(paths: Sequence[str], rule: Rule, options: ConnectionOptions) -> int:
    """Return how many bytes of data each node may have, so that one transaction can create all nodes.

    Raises ``ValueError`` if that is too few. A server would close the connection instead of answering.
    """
    prefix = name_prefix(new_guid(), rule.kind, rule.limit)
    size = wire.creation_size(options, [f"{path}/{prefix}" for path in paths])
    room = (wire.MAX_REQUEST - size) // len(paths)
    if room < node_data.MIN_BYTES:
        raise ValueError(
            f"a lock of {len(paths)} keys is too large: one request creates all its nodes, which takes "
            f"{size + len(paths) * node_data.MIN_BYTES} bytes, and ZooKeeper reads no request of more than "
            f"{wire.MAX_REQUEST}"
        )
    return min(room, node_data.MAX_BYTES)


class MemberContender(SingleContender):
    """The contender of one key of several. The :class:`MultiContender` creates its node, and gives it up."""

    __slots__ = ("_multi",)

    def __init__(self, multi: MultiContender, path: LockPath, node: str, token: int) -> None:
        super().__init__(
            multi.session, path, multi.rule, data=multi.data, wait=multi.wait, notify=partial(multi.on_member, self)
        )
        self._multi = multi
        self.wants_holder = multi.wants_holder
        self.state = State.JOINING
        self.node, self.token = node, token
        self.session.add_listener(self)

    def lose(self, reason: str) -> None:
        """Mark the hold as lost. Before all members hold there is nothing to lose: only the node matters."""
        if self._multi.state is State.HELD:
            super().lose(reason)

    def unavailable(self, _reason: str) -> None:
        """Nothing: the multi-contender decides for all members."""

    def _lose_node(self) -> None:
        if self._multi.state is State.HELD:
            super()._lose_node()
        else:
            # It must not count as held while the reason is being read.
            self._finish()

    def _wait_in_queue(self, plan: WatchPlan) -> None:
        super()._wait_in_queue(plan)
        self._multi.on_member(self)

    def _create(self) -> None:
        self._multi.start_again()

    def _start_again(self) -> None:
        self._multi.start_again()


class MultiContender(Contender):
    """One attempt to hold the locks of several keys. ``state`` is HELD when every member holds."""

    __slots__ = ("_blocked", "_leaving", "_listings", "_members", "_taken_listing", "_waiting")

    def __init__(
        self,
        session: Session,
        paths: Sequence[LockPath],
        rule: Rule,
        *,
        data: bytes,
        wait: bool,
        notify: Callable[[], None],
    ) -> None:
        super().__init__(session, paths, rule, data=data, wait=wait, notify=notify)
        self._listings = [shared_listing(session, each.path) for each in paths]
        # The queue in which we would have to wait, if we do not wait.
        self._taken_listing = self._listings[0]
        # By path, in the order of the paths. There may be a thousand, so no step of one iterates over all.
        self._members: dict[str, MemberContender] = {}
        # The members that do not hold yet; and those of them that wait, with the number of their holder reads.
        self._blocked: dict[MemberContender, None] = {}
        self._waiting: dict[MemberContender, int] = {}
        # The members of earlier creations, and all members once we leave, until their nodes are deleted.
        self._leaving: dict[MemberContender, None] = {}

    def _move_to(self, session: Session) -> None:
        self._listings = [shared_listing(session, each.path) for each in self._paths]
        self._taken_listing = self._listings[0]
        super()._move_to(session)

    def __repr__(self) -> str:
        return f"<MultiContender {self.state.value} {' '.join(each.path for each in self._paths)}>"

    @property
    def node_paths(self) -> dict[str, str]:
        return {path: node for member in self._members.values() for path, node in member.node_paths.items()}

    # For callers.

    def refresh_holder(self) -> None:
        """Read the owner of a blocker; ``holder_reads`` grows when the answer is there."""
        blocked = next(iter(self._blocked), None)
        if blocked is not None:
            blocked.refresh_holder()
        elif self.session.connected:
            self._taken_listing.read_first_holder(self.rule, None, self.on_holder)

    # SessionListener. The members are called for themselves, after this; each reads its node at a heartbeat.

    def _request_unknown(self) -> None:
        if self._creation is not None:
            self._creation.start()
        elif self.state is State.JOINING and not self._members:
            self._create()

    def session_ended(self, reason: str) -> None:
        self.suspended()
        self._reset_creation()
        if self.state is State.HELD:
            self.lose(reason)
        elif self.state in {State.JOINING, State.WAITING}:
            self._release_members()
            self.state = State.JOINING
        self._finish_if_gone()

    # The nodes.

    def list_queue(self) -> None:
        """Request a listing of each queue, for its member."""
        for listing in self._listings:
            listing.list_queue(partial(self._listed, self._generation, listing.path))

    def _listed(self, asked: int, path: str, queue: Queue, refusal: KazooException | None) -> None:
        member = self._members.get(path)
        if asked == self._generation and member is not None:
            member.on_queue(queue, refusal)

    def _adopt(self, created: Created) -> None:
        self.refusal = None
        self.token = created.czxid
        self._members = {
            each.path: MemberContender(self, each, name, created.czxid)
            for each, name in zip(self._paths, created.names, strict=True)
        }
        self._blocked = dict.fromkeys(self._members.values())
        if self.state is State.LEAVING:
            self._release_members()
            self._finish_if_gone()
        elif created.was_recovered:
            for member in self._members.values():
                member.list_queue()

    def _taken_in(self, listing: SharedListing) -> None:
        self._taken_listing = listing
        super()._taken_in(listing)

    # Members.

    def on_member(self, member: MemberContender) -> None:
        """Act on a change of a member; the other members have reported theirs before."""
        if member.state is State.GONE:
            self._leaving.pop(member, None)
        if self.state in {State.LEAVING, State.GONE}:
            self._finish_if_gone()
            return
        if self._members.get(member.path) is not member:
            return
        # Kept here, because a thousand members may report one after the other, and none of them may look at all.
        if self.revoked is None:
            self.revoked = member.revoked
        if self.state is State.HELD:
            if member.lost is not None and (
                self.lost is None or (self.loss_reason_pending and not member.loss_reason_pending)
            ):
                # A thread that finds the loss must find that its reason is pending.
                self.loss_reason_pending = self.loss_reason_pending or member.loss_reason_pending
                self.lost = member.lost
                self.loss_reason_pending = member.loss_reason_pending
            if member.lost is not None or member.revoked is not None:
                self._notify()
        elif member.error is not None or member.taken:
            self.error, self.taken, self._taken_listing = member.error, member.taken, member.listing
            self._abort()
        elif member.state is State.GONE:
            self.start_again()
        else:
            self._count(member)

    def _count(self, member: MemberContender) -> None:
        if member.state is State.HELD:
            self._blocked.pop(member, None)
            self._waiting.pop(member, None)
            first = next(iter(self._waiting), None)
            self.holder = first.holder if first is not None else None
        elif member.state is State.WAITING:
            reads = member.holder_reads - self._waiting.get(member, 0)
            if reads:
                # The newest one. A caller that has asked for it must not get that of another member.
                self.holder = member.holder
            self.holder_reads += reads
            self._waiting[member] = member.holder_reads
            self.wants_holder = self.wants_holder and member.wants_holder
        if not self._blocked:
            self.state = State.HELD
            self._notify()
        elif self._waiting:
            self.state, self.answered = State.WAITING, True
            self._notify()

    def start_again(self) -> None:
        """A node was deleted, so create all nodes again: a single new one would break the common order."""
        if self.state in {State.JOINING, State.WAITING}:
            logger.warning("event=places_lost paths=%s", " ".join(each.path for each in self._paths))
            self._release_members()
            self.state = State.JOINING
            if self.session.connected:
                self._create()

    def _release(self) -> None:
        self._abandon_creation()
        self._release_members()
        self._finish_if_gone()

    def _release_members(self) -> None:
        members = [member for member in self._members.values() if member.state is not State.GONE]
        self._members, self._blocked, self._waiting = {}, {}, {}
        # Before one of them reports that its node is deleted.
        self._leaving.update(dict.fromkeys(members))
        for member in members:
            if self.state is not State.LEAVING:
                # What is reserved for us is for the nodes that we create next. These exist until they are deleted.
                member.reserve()
            member.leave()

    def _finish_if_gone(self) -> None:
        if self.state is State.LEAVING and not self._leaving and self._creation is None:
            self._finish()
