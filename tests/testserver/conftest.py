"""A real server and the test server with the same limits, and the settings of hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir

from django_zklock.testing import ZooKeeperServer
from tests.testserver import snapshot
from tests.testserver.server_area import Scene
from tests.toolbox.protocol.operations import CREATE, CloseSession, Create, Home
from tests.toolbox.protocol.raw_client import RawClient
from tests.toolbox.zookeeper.server import ZooKeeper

HERE = Path(__file__).parent
# Below a folder that git ignores.
set_hypothesis_home_dir(HERE.resolve().parents[1] / ".pytest_cache" / "hypothesis")
settings.register_profile(
    "normal",
    max_examples=150,
    deadline=None,
    print_blob=True,
    # Examples are large, and each one uses two servers: the time to generate one does not matter.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    # The explain phase repeats a failure many times to find lines of code; the example is enough.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
# With --hypothesis-profile=long: ten minutes, and a gigabyte for hypothesis's memory of the examples.
settings.register_profile("long", settings.get_profile("normal"), max_examples=6_000)
settings.load_profile("normal")

MIN_SESSION_TIMEOUT, MAX_SESSION_TIMEOUT = 1.0, 60.0
# Long enough that nothing is reaped during a comparison.
NEVER = 1_000_000.0
# The initial nodes of both servers, so that their roots stay alike: a folder for tests of one server, and for each
# start number a set of folders whose sequences start there.
ANSWERS = "/answers"
COUNTED = {f"/counted-{number}-{copy}": number for number in (2**31 - 3, 2**31 - 1, -2) for copy in range(4)}
PLANTED = {ANSWERS: 0, **COUNTED}

# These use the server through kazoo or a project; for all others the installed versions do not matter.
OF_LIBRARIES = {
    "test_faults",
    "test_java_clients",
    "test_network",
    "test_network_cut_replies",
    "test_replica",
    "test_requestlog",
    "test_run",
    "test_server",
}

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.stem not in OF_LIBRARIES:
            item.add_marker(pytest.mark.once)


@pytest.fixture(scope="session")
def reference() -> Iterator[ZooKeeper]:
    """Return a real server that no other test uses, so that its zxids are predictable."""
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
    """Return a test server with the same limits."""
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
    """Return a function that returns an unused folder of a server."""
    left = {kind: dict(COUNTED) for kind in ("reference", "ours")}

    def count(kind: str, number: int) -> str:
        path = next(path for path, its_number in left[kind].items() if its_number == number)
        del left[kind][path]
        return path

    return count


@pytest.fixture(params=[pytest.param("reference", marks=pytest.mark.zookeeper, id="zookeeper"), "ours"])
def either(request: pytest.FixtureRequest, count_on: Callable[[str, int], str]) -> Iterator[Scene]:
    """Return each of the two servers in turn."""
    server: ZooKeeper | ZooKeeperServer = request.getfixturevalue(request.param)
    scene = Scene(server.address, f"{ANSWERS}/{next(_numbers)}", partial(count_on, request.param))
    yield scene
    scene.close()
