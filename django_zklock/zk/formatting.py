"""Text for people about locks. What other clients have written into the tree is escaped."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from django_zklock.zk.wire.options import AT_A_REQUEST, AUTH_REFUSED, NOT_ACCEPTED, NOT_RESOLVED, NOT_STARTED

_LOCAL_SERVER = re.compile(r"\s*(localhost|127(\.\d+){3}|\[::1\])(:\d+)?\s*")

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

MAX_NAMES = 10


def escape_controls(text: str) -> str:
    r"""Return ``text`` with what a terminal or a browser would interpret or hide written as ``\x1b`` and the like.

    These are control characters, line breaks and the marks that change the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def abbreviate(names: Sequence[str]) -> str:
    """Return the first ten names and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def format_silence(server: str, waited: float, *, connected: bool, refusal: Exception | None = None) -> str:
    """Return what an error says when ZooKeeper has not answered, or has refused, for ``waited`` seconds."""
    seconds = f"{waited:.1f}" if waited >= 1 else f"{max(waited, 0.001):.1g}"
    if connected and refusal is not None:
        return f"ZooKeeper at {server} has refused for {seconds} s: {refusal!r}"
    what = "no answer from" if connected else "no connection to"
    last = "" if refusal is None else f", whose last answer was {refusal!r}"
    return f"{what} ZooKeeper at {server} within {seconds} s{last}"


class Program:
    """How the site runs its commands, by ``line``, for the advice in messages."""

    def __init__(self) -> None:
        self.line = "python manage.py"

    def spell(self, text: str) -> str:
        """Return ``text`` with each ``manage.py zklock`` as the site runs it."""
        # In a sentence the program is enough.
        name = "manage.py" if self.line == "python manage.py" else self.line
        return text.replace("manage.py zklock", f"{name} zklock")


program = Program()

_LIMITS = "raise its limits of open files (`ulimit -n`), threads or memory, or find what uses them up"
DOCTOR = "`manage.py zklock doctor` examines it"

# What to do, by what the error says; the first that fits counts.
_ADVICE = {
    "QuotaExceededError": "raise the quota of ROOT or of a node above it, or delete empty queues by "
    "`manage.py zklock prune`",
    AUTH_REFUSED: DOCTOR,
    AT_A_REQUEST: DOCTOR,
    NOT_ACCEPTED: f"a server runs, but takes no session, as without a quorum, or where it expects TLS; {DOCTOR}",
    NOT_RESOLVED: f"are the names in HOSTS right, and does DNS answer this host? {DOCTOR}",
    NOT_STARTED: _LIMITS,
    # Of a socket, when all else was there already.
    os.strerror(errno.EMFILE): _LIMITS,
    os.strerror(errno.ENFILE): _LIMITS,
    os.strerror(errno.ENOMEM): _LIMITS,
}


def advise(facts: str, hosts: str) -> str:
    """Return what to do about servers that do not answer, or refuse: ``facts`` is what the error says about them."""
    return program.spell(_advise(facts, hosts))


def _advise(facts: str, hosts: str) -> str:
    advice = next((advice for words, advice in _ADVICE.items() if words in facts), None)
    if advice is not None:
        return advice
    if "no connection" not in facts:
        return DOCTOR
    advice = "is it running and reachable, and are HOSTS, TLS and AUTH in ZKLOCK right?"
    # In development all servers are on this machine. One that refuses TLS or credentials is one that listens.
    servers, _, _chroot = hosts.partition("/")
    if "Connection refused" in facts and all(map(_LOCAL_SERVER.fullmatch, servers.split(","))):
        advice += " `manage.py zklock devserver` starts one for development;"
    return f"{advice} {DOCTOR}"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units; a negative one, from clocks that disagree, as 0 s."""
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        large, small = f"{whole // HOUR} h", f"{whole % HOUR // MINUTE} min"
    else:
        large, small = f"{whole // DAY} d", f"{whole % DAY // HOUR} h"
    return large if small.startswith("0 ") else f"{large} {small}"
