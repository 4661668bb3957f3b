"""The result of a request: how it reaches its callback, and which refusals are temporary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo import exceptions
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, KazooException, SessionExpiredError

Reply = Callable[[Any, "KazooException | None"], None]
"""Called with a value, or with the error that the server answered. On the connection's thread."""

# These mean that the connection ended, not that the server answered. The listener is notified of that once, as a change
# of state, and no reply is called.
_CONNECTION_ERRORS = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)


class EncodingError(KazooException):
    """A request that cannot be encoded, or an answer that cannot be decoded."""


class InlineResult:
    """Replaces kazoo's asynchronous result: calls the reply on the connection's thread, at most once."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply: Reply | None = reply

    def set(self, value: Any = None) -> None:
        self._deliver(value, None)

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, _CONNECTION_ERRORS):
            self._reply = None
            return
        if not isinstance(error, KazooException):
            error = EncodingError(f"cannot be encoded or decoded: {error!r}")
        self._deliver(None, error)

    def _deliver(self, value: Any, error: KazooException | None) -> None:
        # kazoo may complete a request twice around a disconnect.
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(value, error)


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
