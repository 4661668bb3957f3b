"""Which ZooKeeper the demo runs on: one that is given, else one that is installed, else the package's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.toolbox.processes.process import NotInstalledError, Process, StartError
from tests.toolbox.zookeeper.devserver import DevServer
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from contextlib import ExitStack

VARIABLE = "ZOOKEEPER_HOSTS"

Wish = Literal["own", "real"]


class Choice(NamedTuple):
    """Where it is, what it is in words for people, and its process if it was started here."""

    hosts: str
    words: str
    process: Process | None


def choose(wish: Wish | None, stack: ExitStack) -> Choice:
    """Start a ZooKeeper, which the stack will end, if none is given or if there is a wish.

    Raises NotInstalledError or StartError if a real one is wished for and cannot be had.
    """
    given = os.environ.get(VARIABLE)
    if given and wish is None:
        return Choice(given, f"as given in {VARIABLE}", None)
    if wish == "own":
        return _own(stack, "as asked for")
    try:
        server = stack.enter_context(ZooKeeper())
        return Choice(server.hosts, server.description(), server)
    except NotInstalledError as error:
        if wish is not None:
            raise
        return _own(stack, f"because {error}")
    except StartError as error:
        if wish is not None:
            raise
        # The log, which may be long, is shown only where just this one is wanted.
        return _own(stack, f"because {error.message}; --zookeeper=real shows why")


def _own(stack: ExitStack, reason: str) -> Choice:
    server = stack.enter_context(DevServer())
    return Choice(server.hosts, f"django_zklock's own development server,\n{reason}", server)
