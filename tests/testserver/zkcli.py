"""ZooKeeper's own command line, ``zkCli.sh``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.toolbox.processes.dialogue import Dialogue
from tests.toolbox.processes.java import QUICK_START
from tests.toolbox.zookeeper.server import Installation

if TYPE_CHECKING:
    from typing import Self

# A command without a request, and the start of its output, which marks the end of the command before it.
LAST_COMMAND = "version"
LAST_ANSWER = "ZooKeeper CLI version:"
EVENT = "WatchedEvent "
# The text before an event, and Java's warning about a missing logger.
NOISE = ("WATCHER::", "SLF4J: ")
ZXID = re.compile(r"[cmp]Zxid = 0x([0-9a-f]+)")


class ZkCli(Dialogue):
    """A running ``zkCli.sh``; the output of its watches is kept apart from that of its commands."""

    def __init__(self, hosts: str) -> None:
        super().__init__()
        self._hosts = hosts
        self._printed: list[str] = []
        self._answers = self.lines()
        self.events = self.lines()

    def arguments(self) -> list[str]:
        return [str(Installation.find().shell()), "-server", self._hosts]

    def environment(self) -> dict[str, str]:
        return {"CLIENT_JVMFLAGS": " ".join(QUICK_START)}

    def start(self) -> Self:
        super().start()
        assert self.events.get() == "state:SyncConnected type:None path:null"
        # Discard its greeting.
        self.run("")
        return self

    def on_line(self, line: str) -> None:
        if line.startswith(EVENT):
            self.events.put(line[len(EVENT) :])
            return
        # Some errors are printed without a line break.
        before, last, _ = line.partition(LAST_ANSWER)
        if before and not before.startswith(NOISE):
            self._printed.append(before)
        if last:
            self._answers.put("\n".join(self._printed))
            self._printed.clear()

    def run(self, command: str) -> str:
        """Run a command and return its output without empty lines."""
        self.send(command)
        self.send(LAST_COMMAND)
        return self._answers.get()


def transcript(hosts: str, root: str, commands: Sequence[str]) -> list[str]:
    """Run the commands, in which ``~`` is ``root``, and return them with their output, then the events.

    Values of one server are left out: times, sessions, and the numbers of transactions except their order.
    """
    lines: list[str] = []
    with ZkCli(hosts) as cli:
        cli.run(f"create {root}")
        for command in commands:
            lines += [f"> {command}", *cli.run(command.replace("~", root)).splitlines()]
        # Events come in their order, but at any time after the change, even after the output of its command.
        last = f"{root}/last-event"
        cli.run(f"stat -w {last}")
        cli.run(f"create {last}")
        while not lines[-1].endswith(last):
            lines.append(cli.events.get())
    order = sorted({int(zxid[1], 16) for line in lines if (zxid := ZXID.fullmatch(line))})
    return [_stable(line, order).replace(root, "~") for line in lines]


def _stable(line: str, order: list[int]) -> str:
    name, _, value = line.partition(" = ")
    if zxid := ZXID.fullmatch(line):
        return f"{name} = number {order.index(int(zxid[1], 16))}"
    if name in {"ctime", "mtime"}:
        return f"{name} = {'never' if value.endswith(' 1970') else 'some time'}"
    if name == "ephemeralOwner" and value != "0x0":
        return f"{name} = a session"
    return line
