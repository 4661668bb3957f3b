"""``zk_lock`` and ``current_lock``: locks of the configured ensembles.

A lock is shown with the work that its caller is a part of: a task of a worker, a management command, a function, or
nothing with a name. An integration such as Celery's appends its function to :data:`resolvers`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import FrameType
from typing import Any, Literal, Never, get_args

from django_zklock import signals
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import Using, alias_of, check_using, connections
from django_zklock.key_value import reject_address
from django_zklock.transactions import CommitLock, Release, check_outside
from django_zklock.zk import arguments
from django_zklock.zk.held import Held, current
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.queue import rule
from django_zklock.zk.waiting import Timeout

Mode = Literal["exclusive", "read", "write"]

resolvers: list[Callable[[], Work | None]] = []
"""Each returns the work that runs in the calling execution context, ``None`` if it does not know it."""

_PROGRAMS = {"manage.py", "django-admin", "django-admin.py"}


def zk_lock(
    key: str | Sequence[str],
    *,
    mode: Mode = "exclusive",
    limit: int | None = None,
    reentrant: bool = True,
    using: Using = DEFAULT_ALIAS,
    timeout: Timeout = None,
    template: str | None = None,
    release: Release = "block",
    label: str | None = None,
    **unknown: Never,
) -> Lock:
    """Return the lock named ``key`` of the ensemble ``ZKLOCK[using]``. No I/O.

    ``using`` may be a function of the key that returns the alias. It is called here, once for each key, and for one key
    it must return the same alias in every process.

    A list or tuple of keys makes one lock of all of them. Acquiring it takes all keys or none. Code that acquires
    keys only in this way cannot deadlock, whatever the order of the keys.

    ``mode``: any number of owners can hold a lock as ``"read"`` at the same time, and only one as ``"write"`` or
    ``"exclusive"``. The queue is first in, first out: a reader waits for a writer that came before it. With ``limit``
    the lock is a semaphore that ``limit`` owners can hold at the same time. If callers use different limits, none of
    them is exceeded.

    ``timeout`` (seconds or ``timedelta``) is the default of ``acquire`` and ``aacquire``, and the timeout of ``with``
    and ``async with``: ``None`` waits without a limit, 0 tries once. ``template`` is a name that many keys share
    (``"invoice:{invoice_id}"``), by which signals and metrics tell locks apart; it changes nothing else.

    The holder is shown by its Celery task, or else by ``label``, and without one by the module and function that have
    called this, unless ``NAME_CODE`` is false; and by the management command. A label may be cut to 256 characters.

    ``release="commit"`` keeps a lock that is acquired inside of database transactions (``transaction.atomic``) until
    the outermost blocks have been committed or rolled back, or their connections closed. Outside of transactions it
    changes nothing. It is for plain code: acquiring it in async code raises ``TypeError``.

    Raise ``ValueError`` for an empty key, a key of more than 1 kB or of invalid text, a key that occurs twice, more
    keys than fit in one request (a thousand do), keys for which ``using`` returns different aliases, an unknown mode,
    an unknown ``release``, ``release="commit"`` with ``reentrant=False``, a negative timeout, and a key with an address
    in memory, as an f-string makes it of an object without a ``__str__``; ``TypeError`` for a key, a template or a
    label that is not a ``str``, a limit that is not positive, a limit with a mode, a timeout of another type, a
    ``using`` that is or returns no ``str``, and an argument that does not exist; ``ImproperlyConfigured`` for an alias
    that is not configured.
    """
    if unknown:
        raise arguments.unexpected("zk_lock", unknown, _PARAMETERS)
    # An f-string writes any object, where a template refuses those without a text of their own.
    if "0x" in (key if isinstance(key, str) else repr(key)):
        for each in [key] if isinstance(key, str) else key:
            reject_address(each)
    if isinstance(using, str):
        alias = using
    else:
        check_using(using)
        alias = alias_of(key, using)
    pool = connections[alias]
    if label is not None:
        place: Work | None = Work(kind="label", name=_check_label(label))
    else:
        place = place_of(sys._getframe(1)) if pool.options.name_code else None  # noqa: SLF001 - as logging does it
    options: dict[str, Any] = {
        "rule": rule(mode, limit),
        "reentrant": reentrant,
        "timeout": timeout,
        "listener": signals.listener,
        "template": template,
    }
    if release == "block":
        return Lock(key, pool, work=partial(_checked_work, alias, template, place), **options)
    if release != "commit":
        raise ValueError(f"release must be one of {', '.join(map(repr, get_args(Release)))}, got {release!r}")
    if not reentrant:
        raise ValueError(
            'release="commit" needs a reentrant lock: after its block the caller holds it until the transaction ends'
        )
    return CommitLock(key, pool, work=partial(current_work, place), **options)


_PARAMETERS = [name for name in zk_lock.__annotations__ if name not in {"unknown", "return"}]


def _checked_work(using: str, template: str | None, place: Work | None) -> Work | None:
    """Return what acquires a lock. A lock asks for it before it joins a queue, and not for a nested hold."""
    work = current_work(place)
    check_outside(using, template)
    return work


def current_work(place: Work | None = None) -> Work | None:
    """Return what runs in the calling execution context, ``None`` if it has no name.

    That is what a resolver finds, or else ``place``, with the management command that is in ``sys.argv``.
    """
    for resolver in resolvers:
        if (found := resolver()) is not None:
            return found
    if len(sys.argv) > 1 and os.path.basename(sys.argv[0]) in _PROGRAMS:  # noqa: PTH119 - a Path takes ten times as long
        command = sys.argv[1]
        return dataclasses.replace(place, command=command) if place is not None else Work(kind="command", name=command)
    return place


def place_of(frame: FrameType) -> Work | None:
    """Return the function that runs in ``frame``, or the module; ``None`` for code of no module."""
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str):
        return None
    return _function(module, frame.f_code.co_qualname)


# The same function mostly locks again.
@lru_cache(maxsize=1024)
def _function(module: str, qualname: str) -> Work:
    # `outer.<locals>.inner` is longer, and says no more to a reader of the code.
    name = qualname.replace("<locals>.", "")
    return Work(kind="function", name=module if name == "<module>" else f"{module}.{name}")


def _check_label(label: object) -> str:
    if not isinstance(label, str) or not label:
        raise TypeError(f"the label of a lock must be a text that is not empty, got {label!r}")
    return label


def current_lock(key: str | None = None, *, using: Using | None = None) -> Held | None:
    """Return the innermost hold of the calling asyncio task, greenlet or thread, ``None`` if it holds nothing.

    With ``key``, return the innermost hold of that lock of the alias ``using``, by default ``"default"``, or of the one
    that ``using`` returns for the key. With ``using`` alone, return the innermost hold of any lock of that alias; raise
    ``TypeError`` if it is a function.
    """
    if key is not None:
        using = alias_of(key, DEFAULT_ALIAS if using is None else using)
    elif callable(using):
        raise TypeError("using can be a function of the key only together with a key")
    return current(key, using)
