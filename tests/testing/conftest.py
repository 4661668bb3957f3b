"""A real server and ours with the same bounds, and how much hypothesis tries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir
from services.zookeeper import ZooKeeper

from django_zklock.testing import ZooKeeperServer
from tests.testing import snapshot
from tests.testing.operations import CREATE, CloseSession, Create, Home
from tests.testing.rawclient import RawClient
from tests.testing.scene import Scene

# Nothing that a checkout does not ignore already.
set_hypothesis_home_dir(Path(__file__).parents[2] / ".pytest_cache" / "hypothesis")
settings.register_profile(
    "normal",
    max_examples=150,
    deadline=None,
    print_blob=True,
    # Examples are large and each asks two servers: how long one takes to make says nothing.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    # Explaining repeats a failure many times to name lines of code; the example tells enough.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
# With --hypothesis-profile=long: ten minutes and a gigabyte, which hypothesis takes to remember them all.
settings.register_profile("long", settings.get_profile("normal"), max_examples=6_000)
settings.load_profile("normal")

MIN_SESSION_TIMEOUT, MAX_SESSION_TIMEOUT = 1.0, 60.0
# Nothing is reaped behind the back of a comparison.
NEVER = 1_000_000.0
# What both servers begin with, so that their roots stay alike whatever tests do: a folder for tests of one server,
# and for each number as many folders as there are tests that count from there.
ANSWERS = "/answers"
COUNTED = {f"/counted-{number}-{copy}": number for number in (2**31 - 3, 2**31 - 1, -2) for copy in range(4)}
PLANTED = {ANSWERS: 0, **COUNTED}

# Those who talk to the server by kazoo, or through a project; to all others it is the same whatever is installed.
HERE = Path(__file__).parent
OF_LIBRARIES = {
    "test_cut_replies",
    "test_faults",
    "test_java_clients",
    "test_lagging_reads",
    "test_network_faults",
    "test_plugin",
    "test_project",
    "test_requestlog",
    "test_sandbox",
    "test_server",
}

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.stem not in OF_LIBRARIES:
            item.add_marker(pytest.mark.once)


@pytest.fixture(scope="session")
def reference() -> Iterator[ZooKeeper]:
    """Give a real server that nobody else uses, so that its zxids can be foretold."""
    server = ZooKeeper(
        min_session_timeout=MIN_SESSION_TIMEOUT,
        max_session_timeout=MAX_SESSION_TIMEOUT,
        properties={
            "zookeeper.extendedTypesEnabled": "true",
            "znode.container.checkIntervalMs": str(round(NEVER * 1000)),
        },
    )
    snapshot.write(server.folder / "data", PLANTED)
    with server:
        yield server


@pytest.fixture(scope="session")
def ours() -> Iterator[ZooKeeperServer]:
    """Give a server of ``django_zklock.testing`` with the same bounds."""
    with ZooKeeperServer(
        min_session_timeout=MIN_SESSION_TIMEOUT, max_session_timeout=MAX_SESSION_TIMEOUT, reap_interval=NEVER
    ) as server:
        with RawClient(server.address) as client:
            client.connect()
            for path, number in PLANTED.items():
                assert client.call(CREATE, Create(path).encode(Home())).error == 0
                server.faults.set_sequence(path, number)
            client.call(CloseSession.opcode)
        yield server


@pytest.fixture(scope="session")
def count_on() -> Callable[[str, int], str]:
    """Give a function that finds a folder of a server that nobody has counted in."""
    left = {kind: dict(COUNTED) for kind in ("reference", "ours")}

    def count(kind: str, number: int) -> str:
        path = next(path for path, its_number in left[kind].items() if its_number == number)
        del left[kind][path]
        return path

    return count


@pytest.fixture(params=[pytest.param("reference", marks=pytest.mark.zookeeper, id="zookeeper"), "ours"])
def either(request: pytest.FixtureRequest, count_on: Callable[[str, int], str]) -> Iterator[Scene]:
    """Give each of the two servers in turn."""
    server: ZooKeeper | ZooKeeperServer = request.getfixturevalue(request.param)
    scene = Scene(server.address, f"{ANSWERS}/{next(_numbers)}", partial(count_on, request.param))
    yield scene
    scene.close()
