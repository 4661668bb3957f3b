"""How the connections of a client end: whether the server ends each of them at the same request.

A handshake shows little. A server may take the session, and close the connection at a request that it does not know, or
that is too long for it: an old ClickHouse Keeper, a small ``jute.maxbuffer``. The next connection then sends the same
request again.
"""

from __future__ import annotations

from collections.abc import Iterable

from django_zklock.zk.wire.options import AT_A_REQUEST
from django_zklock.zk.wire.requests import NEWER

# The share of the session timeout after which a connection has served: its end says nothing about the requests under
# way. It is shorter than any silence for which we end one ourselves.
TRIAL = 1 / 5
# How a reason begins if the other side has ended the connection; kazoo's words.
CLOSED = "socket connection"
# In the place of a request: the connection may have ended before the server had read one, as it has answered none.
_NONE = ""


class Endings:
    """The ends of one client's connections. Its connection's thread changes this; any thread may call :meth:`explain`.

    Times are seconds of the boot-time clock.
    """

    def __init__(self) -> None:
        # When the handshake was over; None without a connection.
        self._began: float | None = None
        self._trial = 0.0
        self._reason = ""
        # The requests at which the last connection may have ended during its trial: those that were not answered, in
        # the order of their sending. And those of them at which the connection before may have ended too.
        self._last: list[str] = []
        self._repeated: list[str] = []

    def begin(self, now: float, timeout: float) -> None:
        """Record a handshake, with the timeout that was granted to the session."""
        self._began, self._trial = now, TRIAL * timeout

    def end(self, now: float, reason: str, unanswered: Iterable[str], *, received: float, pause: float) -> bool:
        """Record the end of the connection, and return whether it was of use, so that the next may follow at once.

        ``received`` is when something was received last, and ``pause`` the longest one between attempts to connect.
        """
        began = now if self._began is None else self._began
        self._began, self._reason = None, reason
        lasted, has_answered = now - began, received > began
        last = list(dict.fromkeys(unanswered)) if lasted < self._trial else []
        if not has_answered and lasted < self._trial:
            # Whether a request is on its way by then depends on which side is faster.
            last.append(_NONE)
        self._repeated = [each for each in self._last if each in last]
        self._last = last
        # Requests before the one at which the server has closed the connection may be answered. One that lives longer
        # than a pause, such as an idle one behind a load balancer, is no more frequent than attempts to connect.
        return lasted > pause or (has_answered and not self._repeated)

    def explain(self, now: float) -> str | None:
        """Return how connections end again and again; ``None`` if they do not, or if the present one has served."""
        began, repeated, is_closed = self._began, self._repeated, self._reason.startswith(CLOSED)
        if not repeated or (began is not None and now - began >= self._trial):
            return None
        # The server closes the connection at the first request that it does not know, and the answers to those before
        # may be lost with it. So the first that it may not know is named first.
        names = sorted(filter(None, repeated), key=lambda name: name not in NEWER)
        at = f" at {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}" if names else ""
        if not is_closed:
            return f"the connection ends{at}: {self._reason}"
        return f"the server takes the session, and closes the connection{at}: {AT_A_REQUEST}"
