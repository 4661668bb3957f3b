"""Close the sockets of servers in forks of their process.

The module keeps the servers for tests, whose sockets a child must close.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class SocketOwner(Protocol):
    """An object with sockets that a fork must not keep."""

    def descriptors(self) -> Iterable[int]:
        """Return their file descriptors; negative ones are closed."""
        ...


_owners: weakref.WeakSet[SocketOwner] = weakref.WeakSet()


def register(owner: SocketOwner) -> None:
    """Release its sockets in every fork from now on: a connection must end when the parent closes it."""
    _owners.add(owner)


def _release_all() -> None:
    """Replace the sockets by ``/dev/null``.

    The descriptors stay in use, so that objects which still have their numbers cannot close other files.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for owner in list(_owners):
        for descriptor in owner.descriptors():
            if descriptor >= 0:
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_release_all)
