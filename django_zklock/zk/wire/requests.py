"""The requests of a client, each with a reply, their records that kazoo has not, and which refusals are temporary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions
from kazoo.exceptions import (
    EXCEPTIONS,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    GetACL,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
    int_struct,
    multiheader_struct,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

from django_zklock.zk.wire.options import AclEntry, ConnectionOptions, Subject, parse_acl
from django_zklock.zk.wire.watches import WATCHER_TYPES, RemoveWatches, Watch, Watcher, WatchRegistry

_LIST = multiheader_struct.pack(GetChildren.type, False, -1)
_GET = multiheader_struct.pack(GetData.type, False, -1)
_NO_WATCH = b"\0"
_END = multiheader_struct.pack(-1, True, -1)
_ERROR = -1

EPHEMERAL_SEQUENTIAL = 3
CONTAINER = 4

# A server adds the sequence to the path of a creation when it writes its log and sends it to the other servers.
LOG_OVERHEAD = 10
# The most characters of a sequence: below -1 billion, after 4 billion creations, it has 11.
MAX_SEQUENCE = 11
# The length of a path, before the path.
LENGTH_FIELD = 4


class EncodingError(KazooException):
    """A request that cannot be encoded, or an answer that cannot be decoded."""


class CreateContainer(Create2):
    """The request for a container node (opcode 19, ZOOKEEPER-2163)."""

    type = 19


# Requests that are committed by a majority, and those that a follower forwards to the leader. The lease counts on them:
# one that is missing here costs proofs, and one that is wrong here costs safety.
WRITES = (Create, Create2, CreateContainer, Delete, SetData, Transaction)
SEEN_BY_LEADER = (*WRITES, Sync)


def error_of(code: int) -> KazooException:
    """Return the error with that code, which kazoo may not know: it raises ``KeyError`` or ``RuntimeError`` then."""
    return EXCEPTIONS[code]() if code in EXCEPTIONS else KazooException(f"ZooKeeper's error {code}")


def name_of(request: Any) -> str:
    """Return what ZooKeeper calls a request in its logs and in ``ZooDefs.OpCode``."""
    if isinstance(request, Transaction):
        return "multi"
    name = type(request).__name__
    return name[0].lower() + name[1:]


# What ZooKeeper 3.4 did not know, and some other servers of its protocol do not know either.
NEWER = frozenset({"create2", "createContainer", "multiRead", "removeWatches"})


# Many reads in one request.


class Read(NamedTuple):
    """One of many reads: the data and stat of a node, or the names of its children."""

    path: str
    children: bool = False


@dataclass(frozen=True)
class MultiRead:
    """The request for many reads (opcode 22, ZOOKEEPER-3402). Its answer has an outcome for each read."""

    type = 22

    reads: Sequence[Read]

    def serialize(self) -> bytes:
        """Encode the records, each after its header."""
        packet = bytearray()
        for path, children in self.reads:
            packet += _LIST if children else _GET
            packet += write_string(path)
            packet += _NO_WATCH
        packet += _END
        return bytes(packet)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """Return the result of each read: what ``get`` or ``children`` returns, ``None`` if missing, or the error."""
        outcomes: list[Any] = []
        while True:
            kind, done, _error = multiheader_struct.unpack_from(data, offset)
            offset += multiheader_struct.size
            if done:
                return outcomes
            # The length of a node's data, the number of its children, or the code of an error.
            (number,) = int_struct.unpack_from(data, offset)
            offset += int_struct.size
            if kind == GetData.type:
                # A node that was created without data has a size of -1.
                end = offset + max(0, number)
                outcomes.append((data[offset:end], ZnodeStat._make(stat_struct.unpack_from(data, end))))
                offset = end + stat_struct.size
            elif kind == GetChildren.type:
                names = []
                # kazoo's function for a text takes half as long again.
                for _ in range(number):
                    start = offset + int_struct.size
                    offset = start + int_struct.unpack_from(data, offset)[0]
                    names.append(data[start:offset].decode())
                outcomes.append(names)
            elif kind == _ERROR:
                error = error_of(number)
                outcomes.append(None if isinstance(error, NoNodeError) else error)
            else:
                raise ValueError(f"no answer to a read has the type {kind}")


# Requests and replies.


Reply = Callable[[Any, "KazooException | None"], None]
"""Called with a value, or with the error that the server answered. On the connection's thread."""


class Delivery(partial[None]):
    """Replaces kazoo's asynchronous result: the call that gives the answer to its reply, made by the exchange alone."""

    def set_exception(self, error: BaseException) -> None:
        """Drop the request: kazoo calls this when the connection has ended, and the listener is notified of that."""


# These state a fact about the tree, the request or the rights of this client. The same request gets the same answer
# unless a client changes that fact.
#
# All other errors say that a server could not do its work: ThrottledOp, OperationTimeout, RequestTimeout, SystemError,
# RuntimeInconsistency, DataInconsistency, NotReadOnly, QuotaExceeded, and errors of later versions. MarshallingError is
# one of them: a server answers it after any exception of its own (``FinalRequestProcessor``).
_FINAL = (
    EncodingError,
    exceptions.AuthFailedError,
    exceptions.BadArgumentsError,
    exceptions.BadVersionError,
    exceptions.EphemeralOnLocalSessionError,
    exceptions.InvalidACLError,
    exceptions.InvalidCallbackError,
    exceptions.NoAuthError,
    exceptions.NoChildrenForEphemeralsError,
    exceptions.NoNodeError,
    exceptions.NodeExistsError,
    exceptions.NotEmptyError,
    exceptions.NoWatcherError,
    exceptions.ReconfigDisabledError,
    exceptions.SessionClosedRequireSaslError,
    exceptions.UnimplementedError,
)


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later. Whether this one was executed is not known then."""
    return isinstance(error, KazooException) and not isinstance(error, _FINAL)


class Write(NamedTuple):
    """New data for the node at ``path`` if it has that version; with the version ``None`` it is created."""

    path: str
    data: bytes
    version: int | None


def creation_size(options: ConnectionOptions, stems: Sequence[str]) -> int:
    """Return the bytes that :meth:`Requests.create` of these stems takes, besides the data of each."""
    _, slash, chroot = options.hosts.partition("/")
    create = Create("", b"", parse_acl(options.acl), EPHEMERAL_SEQUENTIAL)
    nothing, one = (len(Transaction(each).serialize()) for each in ([], [create]))
    header = 8
    each = one - nothing + len((slash + chroot).encode()) + LOG_OVERHEAD
    return header + nothing + len(stems) * each + sum(len(stem.encode()) for stem in stems)


class Requests(ABC):
    """What a client can ask a server. Requests are made on the connection's thread, and leave together in one write."""

    # Set by the client, as it belongs to the connection: see `Exchange.notify`.
    notify: Callable[..., None]

    def __init__(self, chroot: str, acl: Sequence[Any]) -> None:
        self.acl = acl
        self._chroot = chroot
        # The bytes that a sequential node takes, besides its stem, in the transaction that ends its session. The server
        # writes one with the full paths of all nodes of the session (``CloseSessionTxn``).
        self.path_overhead = LENGTH_FIELD + len(self._chroot.encode()) + MAX_SEQUENCE
        # Used under the monitor: without a connection, waiters that leave discard their watches in the timers' thread.
        self.watches = WatchRegistry()

    def ensure(self, path: str, data: bytes, reply: Reply, *, container: bool, with_ancestors: bool = True) -> None:
        """Create ``path`` as a container or as a persistent node, and what is missing above it as persistent nodes.

        A node above ``path`` that exists is no error, and neither is a refusal there: the server checks the permission
        to create before it checks whether the node exists. The reply is that for ``path``; if its parent is missing,
        the first refusal above it.
        """
        refusals: list[KazooException] = []

        def created(_value: Any, error: KazooException | None) -> None:
            if error is not None and not isinstance(error, NodeExistsError):
                refusals.append(error)

        full = self._chroot + path
        slash = full.find("/", 1)
        while with_ancestors and slash != -1:
            self._send(Create(full[:slash], b"", self.acl, 0), created)
            slash = full.find("/", slash + 1)
        request = CreateContainer if container else Create
        self._send(
            request(full, data, self.acl, CONTAINER if container else 0),
            lambda value, error: reply(value, refusals[0] if refusals and isinstance(error, NoNodeError) else error),
        )

    def create(
        self, stems: Sequence[str], data: bytes, reply: Callable[[tuple[list[str], int] | None, Any], None]
    ) -> None:
        """Create an ephemeral sequential node at each stem, all or none.

        The reply has their names, in the order of the stems, and the id of the one transaction that created them all.
        """

        def created(answer: Any, error: KazooException | None) -> None:
            if answer is None:
                reply(None, error)
                return
            # One node has a stat. For several, a reply is called as soon as it is read: that is the last transaction.
            one = len(stems) == 1
            paths, token = ([answer[0]], answer[1].czxid) if one else (answer, self.last_zxid)
            reply(([path.rpartition("/")[2] for path in paths], token), None)

        if len(stems) == 1:
            self._send(Create2(self._chroot + stems[0], data, self.acl, EPHEMERAL_SEQUENTIAL), created)
        else:
            nodes = [Create(self._chroot + stem, data, self.acl, EPHEMERAL_SEQUENTIAL) for stem in stems]
            self._transact(nodes, created)

    def confirm(self, paths: Sequence[str], reply: Reply) -> None:
        """Ask the leader, in a transaction, whether these nodes exist; the error is ``NoNodeError`` if one does not."""
        self._transact([CheckVersion(self._chroot + path, -1) for path in paths], reply)

    def delete_if_all_exist(self, path: str, others: Sequence[str], reply: Reply) -> None:
        """Delete a node of any version if all ``others`` exist in the same transaction; else change nothing."""
        checks = [CheckVersion(self._chroot + other, -1) for other in others]
        self._transact([*checks, Delete(self._chroot + path, -1)], reply)

    def write_all(self, writes: Sequence[Write], reply: Reply, *, delete: tuple[str, int] | None = None) -> None:
        """Make all ``writes``, and delete the node with the path and version ``delete``, or change nothing."""
        changes: list[Any] = [
            Create(self._chroot + path, data, self.acl, 0)
            if version is None
            else SetData(self._chroot + path, data, version)
            for path, data, version in writes
        ]
        if delete is not None:
            changes.append(Delete(self._chroot + delete[0], delete[1]))
        self._transact(changes, reply)

    def replace(self, deleted: Sequence[str], created: Sequence[tuple[str, bytes]], reply: Reply) -> None:
        """Delete nodes of any version, then create persistent ones with their data, in these orders: all or nothing."""
        deletions = [Delete(self._chroot + path, -1) for path in deleted]
        creations = [Create(self._chroot + path, data, self.acl, 0) for path, data in created]
        self._transact([*deletions, *creations], reply)

    def _transact(self, requests: list[Any], reply: Reply) -> None:
        """Do all or nothing; the reply has the outcome of each, or the error of the one that failed."""

        def read(outcomes: list[Any] | None, error: KazooException | None) -> None:
            # For the other requests of a failed multi the errors only say that they were undone.
            errors = [each for each in outcomes or () if isinstance(each, Exception)]
            causes = [each for each in errors if not isinstance(each, (RolledBackError, RuntimeInconsistency))]
            if outcomes is None or errors:
                reply(None, error or (causes or errors)[0])
            else:
                reply(outcomes, None)

        self._send(Transaction(requests), read)

    def children(self, path: str, reply: Callable[[list[str] | None, Any], None]) -> None:
        """List the names of the children."""
        self._send(GetChildren(self._chroot + path, None), reply)

    def get(self, path: str, reply: Callable[[tuple[bytes, ZnodeStat] | None, Any], None]) -> None:
        """Read data and stat."""
        self._send(GetData(self._chroot + path, None), reply)

    def read_many(self, reads: Sequence[Read], reply: Callable[[list[Any] | None, Any], None]) -> None:
        """Do all ``reads`` in one request; the reply has an outcome for each, see :class:`MultiRead`."""
        self._send(MultiRead([read._replace(path=self._chroot + read.path) for read in reads]), reply)

    def watch(self, path: str, reply: Reply, watcher: Watcher, *, children: bool = False) -> Callable[[], None]:
        """Read as :meth:`get` does, and watch the node if it exists; return what removes the watch.

        With ``children`` read as :meth:`children`, and watch for created and deleted ones. There is no ``exists``: on a
        missing node it would leave a watch behind.
        """
        full, request = self._chroot + path, GetChildren if children else GetData
        watch = self.watches.add((request.type, full), watcher)

        def answered(value: Any, error: KazooException | None) -> None:
            if error is None:
                watch.is_set = True
            else:
                self.watches.discard(watch)
            reply(value, error)

        self._send(request(full, watch), answered)
        return partial(self._remove_watch, watch)

    def _remove_watch(self, watch: Watch) -> None:
        if self.watches.discard(watch) and self.is_live and not self.watches.is_watched(watch.key):
            kind, full = watch.key
            self._send(RemoveWatches(full, WATCHER_TYPES[kind]), lambda _value, _error: None)

    def acl_of(self, path: str, reply: Callable[[list[str] | None, Any], None]) -> None:
        """Read the ACL of a node, as entries ``scheme:id:perms`` with perms out of ``cdrwa``."""

        def read(value: tuple[list[Any], ZnodeStat] | None, error: KazooException | None) -> None:
            reply(None if value is None else [str(AclEntry(each.perms, Subject(*each.id))) for each in value[0]], error)

        self._send(GetACL(self._chroot + path), read)

    def set(self, path: str, data: bytes, reply: Reply, *, version: int = -1) -> None:
        """Replace the data of a node, of any version unless one is given."""
        self._send(SetData(self._chroot + path, data, version), reply)

    def delete(self, path: str, reply: Reply) -> None:
        """Delete a node of any version."""
        self._send(Delete(self._chroot + path, -1), reply)

    def sync(self, path: str, reply: Reply = lambda _value, _error: None) -> None:
        """Make the server catch up with the leader before it answers what follows; the leader sees the request."""
        self._send(Sync(self._chroot + path if path != "/" else self._chroot or "/"), reply)

    def write_nothing(self, reply: Reply) -> None:
        """Commit a transaction that changes nothing; reads that follow show every change committed before it."""
        # Without the permission to read, the check fails, and the server commits a transaction all the same
        # (``PrepRequestProcessor``).
        self._send(Transaction([CheckVersion(self._chroot or "/", -1)]), reply)

    def restore_watches(self, reply: Callable[[None, Any], None]) -> None:
        """Set the watches of the last connection again, some after the other.

        Those whose nodes changed meanwhile are called before the reply.
        """
        keys = self.watches.next_lost()
        if not keys:
            reply(None, None)
            return

        def answered(_value: Any, error: KazooException | None) -> None:
            if error is not None:
                reply(None, error)
                return
            self.watches.restored(keys)
            self.restore_watches(reply)

        self._send(self.watches.set_request(keys), answered)

    @property
    @abstractmethod
    def last_zxid(self) -> int:
        """The newest transaction that an answer has reported."""

    @property
    @abstractmethod
    def is_live(self) -> bool:
        """Whether there is a connection."""

    @abstractmethod
    def _send(self, request: Any, reply: Reply) -> None:
        """Send ``request`` with the next write."""
