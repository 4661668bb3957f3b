"""What becomes of a server's sockets in a fork of its process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class Owner(Protocol):
    """Who has sockets that a fork must not keep."""

    def descriptors(self) -> Iterable[int]:
        """Give their numbers; negative ones are closed."""
        ...


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def let_go(owner: Owner) -> None:
    """Have forks let go of its sockets from now on: a connection must end when the parent ends it."""
    _owners.add(owner)


def _let_go_of_all() -> None:
    """Replace the sockets by nothing.

    Their numbers stay taken, so that the objects that still know them cannot close other files.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for owner in list(_owners):
        for descriptor in owner.descriptors():
            if descriptor >= 0:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go_of_all)
