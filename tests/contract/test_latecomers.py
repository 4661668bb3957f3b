"""A holder that stands still between its check and its write, for longer than its session lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_zklock.zk.lock import Lock
from tests.contract.programs.late_writer import Account
from tests.contract.programs.player import Player
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.zookeeper.any_server import Server


@pytest.fixture
def account(tmp_path: Path) -> Account:
    """Return what the lock is for."""
    account = Account(tmp_path / "account")
    account.open()
    return account


@pytest.fixture
def start(server: Server, root: str, tmp_path: Path) -> Iterator[Callable[[], Player]]:
    """Return a function that starts a process that is going to write to the account."""
    players: list[Player] = []

    def start() -> Player:
        path = tmp_path / "account"
        before = "import tests.contract.programs.late_writer"
        players.append(Player(server.hosts, root, "write", path, timeout=1.0, before=before))
        return players[-1]

    yield start
    for player in players:
        player.end()


def test_write__in_time(start: Callable[[], Player], account: Account) -> None:
    """A holder that was not held up writes."""
    player = start()
    player.receive()
    player.send("go on")
    assert player.receive() == "written False"
    assert account.balance == "the latecomer's"


@pytest.mark.shows("faults#it-is-stopped-for-longer-than-its-session-lives")
def test_write__after_the_next_holder(start: Callable[[], Player], account: Account, make_pool: MakePool) -> None:
    """What a holder writes that has slept through the end of its session, and knows it not, is refused."""
    player = start()
    token = int(player.receive().split()[1])
    player.stop()
    with Lock("k", make_pool()).acquire(timeout=120) as held:
        assert held.token > token
        assert account.set("the next one's", held.token)
        player.send("go on")
        player.resume()
        assert player.receive() == "refused True"
        assert account.balance == "the next one's"
        held.check()
