"""Two minutes of chaos; ``make chaos`` runs as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.chaos import season as season_
from tests.chaos.checker import Checker
from tests.chaos.cluster import Cluster
from tests.chaos.history import FOLDER, read, write
from tests.chaos.picture import draw
from tests.chaos.season import Witness, season
from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.once, pytest.mark.xdist_group("rabbitmq")]

# Of faults; before them all is started and warmed up, and after them each task ends, is counted, and leaves nothing.
SECONDS = 40.0


@pytest.mark.shows("faults#everything-fails-at-random")
@pytest.mark.celery
@pytest.mark.timeout(900)
def test_season(tmp_path: Path) -> None:
    """Under faults of every kind no promise is broken, of clients of every kind and of Celery's workers."""
    outcome = None
    while outcome is None or outcome.is_void:
        seed = f"{random.randrange(2**32)}.0"
        outcome = season(seed, SECONDS, tmp_path / seed)
    picture = tmp_path / "season.png"
    draw(outcome.rows, outcome.findings, picture)
    found = "\n".join(map(str, outcome.findings))
    assert not outcome.findings, f"`make chaos ARGS='--seed {seed} --season {SECONDS:g}'`, {picture}:\n{found}"
    # What it was to meet, it has met.
    assert min(outcome.counts[name] for name in ("faults", "holds", "tasks: runs")) >= 10


def test_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node and a watch that are left are written down, and nothing when both are gone."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with Cluster(["client"], tick_time=0.5, sync_limit=10, linked=True, longest=[60.0] * 3) as cluster:
        client = KazooClient(hosts=cluster.peers.ensemble.hosts)
        client.start(60)
        client.create("/chaos/x0/lock-", ephemeral=True, sequence=True, makepath=True)
        client.exists("/chaos/x0/other", watch=lambda _event: None)
        with monkeypatch.context() as patch:
            patch.setattr(season_, "CLEAN", 5.0)
            season_._look_for_remains(cluster)
        client.stop()
        client.close()
        left = [(row["what"], row["kind"], row["name"]) for row in read(tmp_path)]
        assert left == [("left", "node", "/chaos/x0/lock-0000000000"), ("left", "watch", "/chaos/x0/other")]
        season_._look_for_remains(cluster)
        assert len(read(tmp_path)) == len(left)


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
def test_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has a node alone gets the data of the others; nodes that come and go are none of these."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    read_views = season_._views
    with Cluster([], tick_time=0.5, sync_limit=10, linked=True, longest=[60.0] * 3) as cluster:
        data = cluster.servers[1].folder / "data" / "version-2" / "as-before"
        data.touch()
        looks: list[int] = []

        def with_ghost(clients: list[Any]) -> list[set[tuple[str, str]] | None]:
            views = read_views(clients)
            looks.append(0)
            if views[0] is None or views[1] is None:
                # A server that is busy, or starts. It is asked again.
                return views
            views[0].add(("x0", f"passes-{len(looks)}"))
            if data.exists():
                views[1].add(("x0", "stays"))
            return views

        monkeypatch.setattr(season_, "_views", with_ghost)
        season_._level(cluster)
        rows = read(tmp_path)
        assert [(row["what"], row.get("server"), row.get("name")) for row in rows] == [
            ("diverged", 2, "/chaos/x0/stays"),
            ("fault", None, None),
            ("mended", None, None),
        ]
        assert Checker(rows).faults() == [("follower", rows[1]["at"], rows[2]["at"])]
        assert [cluster.state(server) for server in cluster.servers].count("follower") == 2


@pytest.mark.shows("faults#zookeeper-loses-writes-that-it-has-acknowledged")
@pytest.mark.parametrize("loss", ["none", "told", "untold"])
def test_witness(loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged writes that the ensemble has no more are written down, unless a fault has wiped all servers."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with Cluster([], tick_time=0.5, sync_limit=10, linked=True, longest=[60.0] * 3) as cluster:
        with Witness(cluster) as witness:
            wait_until(lambda: {name[0] for name, _began in list(witness.acknowledged)} == set("012"))
        if loss != "none":
            for server in cluster.servers:
                server.kill()
                server.wipe()
            cluster.heal()
        if loss == "told":
            write("wiped")
        witness.testify(tmp_path)
    forgotten = [(row["count"], row["since"]) for row in read(tmp_path) if row["what"] == "forgotten"]
    first = min(began for _name, began in witness.acknowledged)
    assert forgotten == ([(len(witness.acknowledged), first)] if loss == "untold" else [])
