"""A process that takes locks of every kind until it is told to settle: ``python -m tests.chaos.client``.

Threads, greenlets or tasks of an event loop do so side by side, and with ``forking`` children too. Each turn and each
hold is a row. When the file ``settle`` is there, the turns end; with ``close``, the sessions, and then the process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.toolbox.timing import scaled

from .history import write

if TYPE_CHECKING:
    from django_zklock import Held

KINDS = ("threads", "asyncio", "gevent", "forking")
# Lives side by side in a process. One of them holds for long and others wait behind it, so that a process that is
# stopped or cut off loses a lock that another one gets. Of short holds hardly one ever meets such a fault.
LIVES, SLOW = 6, "0"
# Keys by family; those of "mixed" are taken by locks of all kinds.
KEYS = {"x": 4, "rw": 2, "s": 2, "mixed": 2, "c": 2, "slow": 4}
COALESCED = {f"c{number}" for number in range(KEYS["c"])}
# After it there is no hurry.
AWAY = "ZooKeeperUnavailable"
# Seconds from one row about a hold to the next one.
STEP = 0.1
# Classes of the package of which no object may be left when all sessions are closed.
OWN = {"Contender", "Exchange", "Held", "Possession", "Session", "Wire"}

_calls = itertools.count(1)


def draw_turn(dice: random.Random, *, slow: bool = False) -> dict[str, Any]:
    """Draw what a life does next; one that is ``slow`` holds for about as long as a lease lasts."""
    family = "slow" if slow else dice.choices(list(KEYS), (4, 3, 3, 2, 2, 0))[0]
    key = f"{family}{dice.randrange(KEYS[family])}"
    turn: dict[str, Any] = {
        "do": dice.choices(("with", "try", "nested"), (8, 1, 1))[0],
        "keys": [key],
        "kind": "exclusive",
        "limit": None,
        "timeout": dice.choice((None, None, 0.05, 0.5, 3.0)),
        # Most are short, and some outlast a lease.
        "lasts": dice.uniform(*dice.choices(((0.0, 0.01), (0.02, 0.3), (4.0, 9.0)), (970, 29, 1))[0]),
    }
    if family == "c":
        turn |= {"do": dice.choice(("rebuild", "rebuild", "refresh")), "timeout": None}
    elif family == "rw":
        turn["kind"] = dice.choices(("read", "write"), (3, 1))[0]
    elif family == "s":
        turn |= {"kind": "lease", "limit": dice.choice((2, 2, 3))}
    elif family == "mixed":
        turn["kind"] = dice.choice(("exclusive", "read", "write", "lease"))
        turn["limit"] = 2 if turn["kind"] == "lease" else None
    elif family == "slow":
        turn["lasts"] = dice.uniform(2.0, 7.0)
    elif dice.random() < 0.25:
        turn["keys"] = sorted(f"x{number}" for number in dice.sample(range(KEYS["x"]), 2))
    if turn["do"] == "try":
        turn["timeout"] = 0.0
    return turn


def body(held: Held | None, call: str, turn: dict[str, Any]) -> Iterator[float]:
    """Write down from when until when the hold was certain, and yield how long to pause."""
    # Before the check: a lock that is held after it was held at this time.
    began = time.monotonic()
    lost = held is None or held.lost
    tokens = {} if held is None else held.tokens
    node = None if held is None else held.node
    write("begin", at=began, call=call, tokens=tokens, node=node, lost=lost, kind=turn["kind"], limit=turn["limit"])
    sure, written = began, began
    while True:
        now = time.monotonic()
        if not lost:
            lost = held is None or held.lost
            sure = sure if lost else now
        if lost or now >= began + turn["lasts"]:
            break
        if now - written > STEP:
            write("sure", at=sure, call=call)
            written = now
        yield min(0.02, began + turn["lasts"] - now)
    write("end", at=time.monotonic(), call=call, sure=sure, lost=lost)


class Events(logging.Handler):
    """Writes down what the package says of its sessions, and each error."""

    SAID = ("connected", "suspended", "session_ended", "lost", "place_lost", "places_lost", "connection_dropped")

    def __init__(self, client: str) -> None:
        super().__init__()
        self._client = client

    def emit(self, record: logging.LogRecord) -> None:
        """Write a row."""
        text = record.getMessage()
        event = text.partition(" ")[0].removeprefix("event=")
        if event in self.SAID or record.levelno >= logging.ERROR:
            write("event", client=self._client, event=event, text=text[:300], error=record.levelno >= logging.ERROR)


class Lives:
    """The lives of one process; ``folder`` has the files that say what is next."""

    def __init__(self, name: str, kind: str, seed: str, folder: Path) -> None:
        self.name = name
        self.kind = kind
        self.seed = seed
        self._folder = folder
        # Before there are threads: a fork while one imports can leave the child without an end.
        from . import coalesced

        self._coalesced = vars(coalesced)

    def is_asked_to(self, word: str) -> bool:
        return (self._folder / word).exists()

    def _lock(self, turn: dict[str, Any]) -> Any:
        from django_zklock import zk_lock

        mode: Any = turn["kind"] if turn["kind"] in {"read", "write"} else "exclusive"
        keys = turn["keys"] if len(turn["keys"]) > 1 else turn["keys"][0]
        return zk_lock(keys, mode=mode, limit=turn["limit"], timeout=turn["timeout"])

    def _begin(self, turn: dict[str, Any]) -> str:
        call = f"{os.getpid()}-{next(_calls)}"
        write("call", call=call, client=self.name, **turn)
        return call

    def _done(self, call: str, outcome: str, text: str = "") -> str:
        write("done", call=call, outcome=outcome, text=text[:300])
        return outcome

    # Threads and greenlets.

    def live(self, number: str) -> None:
        """Take turns until it is time to settle."""
        dice = random.Random(f"{self.seed} {self.name} {number}")
        while not self.is_asked_to("settle"):
            outcome = self.take_turn(draw_turn(dice, slow=number == SLOW))
            pause(dice.uniform(0.0, 0.5 if outcome == AWAY else 0.02))

    def take_turn(self, turn: dict[str, Any]) -> str:
        """Take one turn, write down how it ends, and return that."""
        call = self._begin(turn)
        try:
            outcome = self._act(turn, call)
        except Exception as error:  # noqa: BLE001 - the checker says whether it may be
            return self._done(call, type(error).__name__, str(error))
        return self._done(call, outcome)

    def _act(self, turn: dict[str, Any], call: str) -> str:
        if turn["keys"][0] in COALESCED:
            result = self._coalesced[turn["do"]](turn["keys"][0], call, turn)
            return "skipped" if isinstance(result, dict) else "held"
        lock = self._lock(turn)
        if turn["do"] == "try":
            held = lock.try_acquire()
            if held is None:
                return "taken"
            with held:
                run(body(held, call, turn))
            return "held"
        with lock as held:
            if turn["do"] == "nested":
                with self._lock(turn) as inner:
                    write("nested", call=call, same=inner.node == held.node, tokens=inner.tokens)
            run(body(held, call, turn))
        return "held"

    # An event loop.

    async def alive(self, number: str) -> None:
        """Take turns until it is time to settle."""
        import asyncio

        dice = random.Random(f"{self.seed} {self.name} {number}")
        while not self.is_asked_to("settle"):
            turn = draw_turn(dice, slow=number == SLOW)
            if turn["keys"][0] in COALESCED:
                turn["do"] = f"a{turn['do']}"
            call = self._begin(turn)
            try:
                outcome = await self._aact(turn, call)
            except Exception as error:  # noqa: BLE001 - the checker says whether it may be
                outcome = self._done(call, type(error).__name__, str(error))
            else:
                self._done(call, outcome)
            await asyncio.sleep(dice.uniform(0.0, 0.5 if outcome == AWAY else 0.02))

    async def _aact(self, turn: dict[str, Any], call: str) -> str:
        if turn["keys"][0] in COALESCED:
            result = await self._coalesced[turn["do"]](turn["keys"][0], call, turn)
            return "skipped" if isinstance(result, dict) else "held"
        lock = self._lock(turn)
        if turn["do"] == "try":
            held = await lock.atry_acquire()
            if held is None:
                return "taken"
            async with held:
                await arun(body(held, call, turn))
            return "held"
        async with lock as held:
            if turn["do"] == "nested":
                async with self._lock(turn) as inner:
                    write("nested", call=call, same=inner.node == held.node, tokens=inner.tokens)
            await arun(body(held, call, turn))
        return "held"

    # Children.

    def fork(self) -> None:
        """Fork children that take turns with sessions of their own, one after the other; chance kills some."""
        dice = random.Random(f"{self.seed} {self.name} forks")
        for number in itertools.count():
            if self.is_asked_to("settle"):
                return
            turns = [draw_turn(dice) for _ in range(dice.randint(1, 4))]
            child = os.fork()
            if child == 0:
                self._be_child(turns)
            write("forked", child=child, number=number)
            delay = dice.expovariate(1.0)
            if dice.random() < 0.3:
                pause(delay)
                # Before it is waited for: the number is not another process's.
                write("killed", victim=child)
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            write("gone", victim=child)

    def _be_child(self, turns: list[dict[str, Any]]) -> None:
        from django_zklock.connections import connections

        try:
            for turn in turns:
                self.take_turn(turn)
            connections.close_all()
        except Exception as error:  # noqa: BLE001 - no one else would tell
            write("error", text=f"a child of {self.name} has failed: {error!r}")
        finally:
            os._exit(0)


def pause(seconds: float) -> None:
    """Sleep, in a way that libfaketime leaves alone."""
    threading.Event().wait(seconds)


def run(steps: Iterator[float]) -> None:
    """Run a body in a thread or a greenlet."""
    for seconds in steps:
        pause(seconds)


async def arun(steps: Iterator[float]) -> None:
    """Run a body in an event loop."""
    import asyncio

    for seconds in steps:
        await asyncio.sleep(seconds)


def remains() -> dict[str, Any]:
    """Return what this process has now: threads, descriptors, objects of the package, memory in KB."""
    gc.collect()
    descriptors: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the folder's own
            continue
        descriptors["file" if target.startswith("/") else target.partition(":[")[0]] += 1
    kinds = Counter(
        type(thing).__name__ for thing in gc.get_objects() if OWN & {base.__name__ for base in type(thing).__mro__}
    )
    rss = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "sockets": descriptors["socket"],
        "descriptors": sum(descriptors.values()),
        "objects": dict(kinds),
        "rss": int(rss.split()[1]),
    }


def settle(lives: Lives) -> None:
    """Say what there is after all turns, and once more when the sessions are closed."""
    from django_zklock.connections import connections

    write("idle", client=lives.name, **remains())
    while not lives.is_asked_to("close"):
        pause(0.05)
    connections.close_all(scaled(30))
    # The thread that writes the log ends when there is nothing to write, and an executor's has no end.
    deadline = time.monotonic() + scaled(20)
    while any(thread.name.startswith("zklock") for thread in threading.enumerate()) and time.monotonic() < deadline:
        pause(0.05)
    write("closed", client=lives.name, **remains())


def main() -> None:
    """Live."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--session-timeout", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--start", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.kind == "gevent":
        from gevent import monkey

        monkey.patch_all()
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    import django
    from django.conf import settings

    alias = {
        "HOSTS": arguments.hosts,
        "ROOT": arguments.root,
        "SESSION_TIMEOUT": arguments.session_timeout,
        "CONNECT_TIMEOUT": 2.0 * arguments.session_timeout,
    }
    logging_: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"error": {"class": "logging.StreamHandler", "level": "WARNING"}},
        "loggers": {"django_zklock": {"handlers": ["error"], "level": "INFO"}},
    }
    settings.configure(ZKLOCK={"default": alias}, INSTALLED_APPS=["django_zklock"], LOGGING=logging_, USE_TZ=True)
    django.setup()
    logging.getLogger("django_zklock").addHandler(Events(arguments.name))
    lives = Lives(arguments.name, arguments.kind, f"{arguments.seed} {arguments.start}", arguments.folder)
    write("client", client=arguments.name, kind=arguments.kind, session_timeout=arguments.session_timeout, **remains())
    if arguments.kind == "asyncio":
        import asyncio

        async def all_lives() -> None:
            await asyncio.gather(*(lives.alive(str(number)) for number in range(2 * LIVES)))

        asyncio.run(all_lives())
    else:
        threads = [
            threading.Thread(target=lives.live, args=(str(number),), name=f"life {number}") for number in range(LIVES)
        ]
        if arguments.kind == "forking":
            threads.append(threading.Thread(target=lives.fork, name="forks"))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    settle(lives)


if __name__ == "__main__":
    main()
