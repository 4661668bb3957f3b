"""What servers tell of themselves: real ones, and some that lie or are silent."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.ops import ensemble
from django_zklock.zk.ops.ensemble import Configuration, Latency, Server
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import MAX_SESSION, scaled
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.server import ZooKeeper
from tests.unit.fake_four_letter import Answer, Talker, serving

# How long a test waits for servers that never answer, and how much later it may have its own answer on a busy machine.
TIMEOUT = 0.4
GRACE = scaled(8)


def ask(hosts: str, timeout: float = 10.0) -> list[Server]:
    return ensemble.servers(ConnectionOptions(hosts=hosts), timeout=timeout)


def ask_one(hosts: str, timeout: float = 10.0) -> Server:
    (server,) = ask(hosts, timeout)
    return server


def ask_silent(hosts: str) -> Server:
    """Ask a server whose answer never ends, and check that the timeout is kept."""
    began = time.monotonic()
    server = ask_one(hosts, TIMEOUT)
    assert time.monotonic() - began < TIMEOUT + GRACE
    assert server.role is None
    return server


@pytest.mark.zookeeper
def test_alone(zookeeper: ZooKeeper) -> None:
    """A standalone server tells everything about itself, with its configuration."""
    server = ask_one(zookeeper.hosts)
    assert (server.address, server.role, server.problem, server.withheld) == (zookeeper.hosts, "standalone", "", ())
    assert server.version is not None
    assert server.version.startswith("3.")
    assert None not in (server.latency, server.connections, server.sessions, server.outstanding)
    assert server.nodes is not None
    assert server.nodes > 1
    assert server.configuration == Configuration(
        tick_time=0.2, min_session_timeout=0.8, max_session_timeout=MAX_SESSION
    )


@pytest.fixture(scope="module")
def trio() -> Iterator[Ensemble]:
    """Return three servers, of which one is stopped."""
    with Ensemble() as trio:
        trio.followers()[0].stop()
        trio.leader()
        yield trio


@pytest.mark.zookeeper
def test_several__one_is_stopped(trio: Ensemble) -> None:
    """Each of three servers tells its role and the number of voters; the stopped one has a problem."""
    found = ask(f"{trio.hosts}/some/chroot")
    assert [server.address for server in found] == trio.hosts.split(",")
    assert sorted(server.role or "" for server in found) == ["", "follower", "leader"]
    for server in found:
        if server.role is None:
            assert server.problem == "Connection refused"
            assert server.configuration is None
        else:
            assert server.problem == ""
            assert server.configuration is not None
            assert server.configuration.voters == 3


class Reticent(ZooKeeper):
    """A server that allows only the default words."""

    def __init__(self) -> None:
        super().__init__(settings={"4lw.commands.whitelist": "srvr"})

    def is_ready(self) -> bool:
        """Ask with the only word that is answered."""
        with contextlib.suppress(OSError):
            return "Mode: " in self.command("srvr")
        return False


@pytest.mark.zookeeper
def test_words__default_whitelist() -> None:
    """The default words of a server are enough for role, version and counters."""
    with Reticent() as zookeeper:
        server = ask_one(zookeeper.hosts)
    assert (server.role, server.problem, server.withheld) == ("standalone", "", ("mntr", "conf"))
    assert (server.sessions, server.configuration) == (None, None)
    assert server.nodes is not None


def test_server_for_tests(testserver: ZooKeeperServer) -> None:
    """The test server answers all but its configuration."""
    server = ask_one(testserver.hosts)
    assert (server.role, server.problem) == ("standalone", "")
    assert server.sessions is not None
    assert server.configuration is None


def test_facts() -> None:
    """Every queue of the answer is parsed."""
    with Talker(serving(version="3.9.2", mode="observer")) as talker:
        server = ask_one(talker.hosts)
    assert server == Server(
        address=talker.hosts,
        role="observer",
        version="3.9.2",
        latency=Latency(minimum=0, average=1.5, maximum=12),
        connections=3,
        outstanding=1,
        nodes=5,
        withheld=("mntr", "conf"),
    )


def test_ipv6() -> None:
    """An IPv6 address is asked, and shown as in HOSTS."""
    with Talker(serving(), host="::1") as talker:
        server = ask_one(talker.hosts)
    assert (server.address, server.role) == (talker.hosts, "follower")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda word: [f"{word} is not executed because it is not in the whitelist.\n".encode()], "srvr"),
        (lambda _word: [b"This ZooKeeper instance is not currently serving requests\n"], "quorum"),
        (lambda _word: [], "closed"),
        (lambda _word: itertools.repeat(b"Mode: leader " * 4096), "no answer of ZooKeeper"),
    ],
    ids=["no word is allowed", "no quorum", "closes at once", "endless"],
)
def test_problem(answer: Answer, problem: str) -> None:
    """A server that says nothing of use has a problem that says why; of an endless answer, the first 64 kB are read."""
    with Talker(answer) as talker:
        server = ask_one(talker.hosts, GRACE)
    assert server.role is None
    assert problem in server.problem
    assert (server.withheld == ensemble.WORDS) is (problem == "srvr")


def test_nobody_there() -> None:
    """A port without a server is a refused connection."""
    assert ask_one(f"{LOOPBACK}:{free_port()}").problem == "Connection refused"


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b", "x" * 70])
def test_no_such_host(name: str) -> None:
    """A host name that does not exist, or cannot exist, is a problem of that server alone."""
    with Talker(serving()) as talker:
        nobody, somebody = ask(f"{name}:2181,{talker.hosts}")
    assert nobody.role is None
    assert nobody.problem
    assert somebody.role == "follower"


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xfe\x00\x80" * 100,
        b"HTTP/1.1 400 Bad Request\r\n\r\n<script>alert(1)</script>",
        "Mode: leader\u202e\n\x1b[2J".encode(),
        b"Mode: \nMode\n:::\n\n=\n\t\n",
        b"Zookeeper version: " + b"9" * 5000 + b"\nMode: emperor\n",
    ],
)
def test_nonsense(answer: bytes) -> None:
    """An answer that is not ZooKeeper's is quoted in part, without control characters, and not parsed further."""
    with Talker(lambda _word: [answer]) as talker:
        server = ask_one(talker.hosts)
    assert server.role is None
    assert server.problem.isprintable()
    assert len(server.problem) < 400
    assert (server.version or "").replace(".", "").isdigit() or server.version is None


def test_numbers() -> None:
    """Malformed or impossible numbers are left out; the rest of the answer is used."""
    lies = "Mode: leader\nConnections: -1\nOutstanding: 1e9\nNode count: \u0664\nLatency min/avg/max: 1/2\n"
    lies += f"Received: {'9' * 9999}\n"
    with Talker(lambda _word: [lies.encode()]) as talker:
        server = ask_one(talker.hosts)
    assert server == Server(address=talker.hosts, role="leader")


@pytest.mark.parametrize("latency", ["1.1.1/2/3", "./././", "1/2/3/4", "nan/nan/nan", f"{'1' * 400}/1/1"])
def test_latency(latency: str) -> None:
    """A malformed latency is left out, too."""
    with Talker(lambda _word: [f"Mode: leader\nLatency min/avg/max: {latency}\n".encode()]) as talker:
        server = ask_one(talker.hosts)
    assert (server.role, server.latency) == ("leader", None)


def test_configuration__observers() -> None:
    """Observers do not vote."""
    members = "".join(f"server.{n}=zk{n}:2888:3888:{kind}\n" for n, kind in enumerate(("participant", "observer") * 2))
    answers = {"srvr": "Mode: follower\n", "conf": f"tickTime=2000\nminSessionTimeout=-1\n{members}"}
    with Talker(lambda word: [answers.get(word, "").encode()]) as talker:
        server = ask_one(talker.hosts)
    assert server.configuration == Configuration(tick_time=2.0, voters=2)


def _drip(_word: str) -> Iterable[bytes]:
    for _number in itertools.count():
        threading.Event().wait(0.01)
        yield b"M"


@pytest.mark.parametrize("answer", [lambda _word: None, _drip], ids=["silent", "dripping"])
def test_silence(answer: Answer) -> None:
    """A server that does not answer, or one byte at a time without an end, takes the timeout, not longer."""
    with Talker(answer) as talker:
        assert ask_silent(talker.hosts).problem == f"no answer within {TIMEOUT:g} s"


def test_lookup_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer does not make it take longer either."""
    over = threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: str, *arguments: object, **options: object) -> object:
        if host == "slow.example":
            over.wait(scaled(30))
        return look_up(host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        assert ask_silent("slow.example:2181").problem == f"no answer within {TIMEOUT:g} s"
    finally:
        over.set()


def test_all_at_once() -> None:
    """Ten servers that do not answer take as long as one."""
    with Talker(lambda _word: None) as talker:
        began = time.monotonic()
        found = ask(",".join([talker.hosts] * 10), each := scaled(3.0))
        assert time.monotonic() - began < each + 2 * GRACE < 10 * each
    assert len(found) == 10


def test_hosts__nonsense() -> None:
    """A text that is not a list of servers raises an error."""
    with pytest.raises(ValueError, match="IPv6"):
        ask("[::1")


@pytest.mark.parametrize(
    "patch", ["from gevent import monkey; monkey.patch_all()", "import eventlet; eventlet.monkey_patch()"]
)
def test_greenlets(patch: str) -> None:
    """It works with sockets patched by gevent, too."""
    program = (
        f"{patch}\nimport sys\n"
        "from django_zklock.zk.ops import ensemble\nfrom django_zklock.zk.wire import ConnectionOptions\n"
        "silent, there = ensemble.servers(ConnectionOptions(hosts=sys.argv[1]), timeout=float(sys.argv[2]))\n"
        "print(silent.problem, there.role, sep=', ')\n"
    )
    with Talker(lambda _word: None) as silent, Talker(serving()) as there:
        outcome = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, f"{silent.hosts},{there.hosts}", str(scaled(1))],
            capture_output=True, text=True, timeout=scaled(60), check=False,
        )  # fmt: skip
    assert outcome.stdout == f"no answer within {scaled(1):g} s, follower\n", outcome.stderr
