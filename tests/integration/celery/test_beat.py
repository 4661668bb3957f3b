"""Several beats, one of which sends: as processes, and the leader's store by itself."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler, SchedulingError
from django.core.exceptions import ImproperlyConfigured
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl
from kombu import Connection
from kombu.exceptions import OperationalError

from django_zklock.connections import connections
from django_zklock.contrib.celery.beat import (
    KEEP_GONE,
    MAX_ATTEMPTS,
    MAX_SKEW,
    RETRY_INTERVAL,
    LeaderScheduler,
    Sends,
    TakenOver,
)
from django_zklock.exceptions import LockLost, ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import LoggedRequest, Opcode, ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions, snapshots
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.integration.refusing_server import Refusals
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.projects import PROJECTS
from tests.toolbox.django.layer import Recorder
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.processes.project import PROJECT, ProjectProcess
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.celery]

KEY = "celery-beat:beatshop"
LONG, SHORT = 40.0, 2.0
# Starting Python with Django and Celery, on a busy machine.
TIMEOUT = 30.0
HOUR = 3600.0


class Beat(ProjectProcess):
    """``celery beat``, or a worker that embeds it."""

    name: ClassVar[str] = "Celery beat"
    start_timeout = 60.0

    def __init__(self, environment: dict[str, str], *command: str) -> None:
        super().__init__()
        self._environment = environment
        self._command = command or ("beat",)

    def arguments(self) -> list[str]:
        schedule = str(self.folder / "schedule")
        return [sys.executable, "-m", "celery_command", "beatshop", *self._command, "-l", "INFO", "-s", schedule]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._environment}

    def is_ready(self) -> bool:
        return "beat: Starting" in self.written

    @property
    def written(self) -> str:
        return self.log_tail(100_000)

    def wait_written(self, event: str, count: int = 1) -> None:
        """Wait until an event was logged ``count`` times."""
        wait_until(
            lambda: self.written.count(event) >= count or not self.is_running(), TIMEOUT, f"{event}\n{self.log_tail()}"
        )
        assert self.is_running(), self.log_tail(60)


class Beatshop:
    """Beats of one app, the tasks that they have sent, and their leader."""

    def __init__(self, server: ZooKeeperServer, broker: Redis) -> None:
        import redis

        self.server = server
        self.queue = f"beatshop-{uuid.uuid4().hex[:8]}"
        self.root = f"/{self.queue}"
        self.path = f"{self.root}/{KEY}"
        self.broker = broker
        self.board = redis.Redis.from_url(broker.url, decode_responses=True, socket_timeout=None)
        self.beats: list[Beat] = []
        self.pool = Pool(
            "outside",
            PoolOptions(connection=ConnectionOptions(hosts=server.hosts, session_timeout=scaled(20)), root=self.root),
        )

    def beat(
        self,
        *command: str,
        timeout: float = LONG,
        scheduler: str = "celery.beat:Scheduler",
        broker: str | None = None,
    ) -> Beat:
        """Start a beat with a schedule file of its own."""
        environment = {
            "DJANGO_SETTINGS_MODULE": "beatshop.settings",
            "CELERY_BROKER_URL": broker or self.broker.url,
            "ZOOKEEPER_HOSTS": self.server.hosts,
            "TESTPROJECT_QUEUE": self.queue,
            "BEATSHOP_ROOT": self.root,
            "BEATSHOP_SESSION_TIMEOUT": str(scaled(timeout)),
            "BEATSHOP_SCHEDULE": json.dumps({"pulse": 0.2, "hourly": HOUR}),
            "BEATSHOP_SCHEDULER": scheduler,
            "PYTHONPATH": os.pathsep.join([str(PROJECTS), str(PROJECT), *filter(None, sys.path)]),
        }
        beat = Beat(environment, *command)
        self.beats.append(beat)
        beat.start()
        return beat

    def sent(self, name: str) -> list[int]:
        """Return the pids of the beats that have sent a task, in order."""
        messages = [json.loads(message)["headers"] for message in reversed(self.board.lrange(self.queue, 0, -1))]
        origins = [headers["origin"] for headers in messages if headers["task"] == f"beatshop.{name}"]
        return [int(origin.partition("@")[0].removeprefix("gen")) for origin in origins]

    def wait_sent(self, beat: Beat, count: int = 3, timeout: float = TIMEOUT) -> None:
        """Wait until a beat has sent the pulse ``count`` times from now on."""
        already = self.sent("pulse").count(beat.pid)
        wait_until(
            lambda: self.sent("pulse").count(beat.pid) >= already + count, timeout, f"a pulse\n{beat.log_tail()}"
        )

    def pids_in_queue(self) -> list[int]:
        """Return the pids of the beats in the queue, the leader first."""
        places = snapshots.one_lock(self.pool, KEY, timeout=scaled(10)).entries
        return [place.identity.pid for place in places if place.identity]

    def wait_queue(self, *beats: Beat, timeout: float = TIMEOUT) -> None:
        pids = [beat.pid for beat in beats]
        wait_until(lambda: self.pids_in_queue() == pids, timeout, f"{pids} in the queue, {self.pids_in_queue()}")

    def session(self, beat: Beat) -> int:
        """Return the id of a beat's session."""
        places = snapshots.one_lock(self.pool, KEY, timeout=scaled(10)).entries
        return next(place.session_id for place in places if place.identity and place.identity.pid == beat.pid)

    def asked(self, session: int) -> list[LoggedRequest]:
        """Return the requests of a session, without its pings."""
        requests = self.server.requests.all()
        return [request for request in requests if request.session == session and request.opcode is not Opcode.PING]

    def close(self) -> None:
        for beat in self.beats:
            beat.kill()
            beat.close()
        self.pool.close(2.0)
        self.board.close()


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """Return a server of the test's own."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def beatshop(server: ZooKeeperServer, broker: Redis) -> Iterator[Beatshop]:
    beatshop = Beatshop(server, broker)
    yield beatshop
    beatshop.close()


class Clocks:
    """The clocks of the beats and of the ZooKeeper in this process, as differences from the true time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = self.there = 0.0
        true_time, true_nanoseconds, true_now = time.time, time.time_ns, Celery.now
        monkeypatch.setattr(time, "time", lambda: true_time() + self.here)
        monkeypatch.setattr(time, "time_ns", lambda: true_nanoseconds() + int(self.there * 1e9))
        monkeypatch.setattr(Celery, "now", lambda app: true_now(app) + timedelta(seconds=self.here))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.here += seconds
        self.there += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@contextmanager
def kazoo_client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """Return a client with a connection of its own."""
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=scaled(20))
    try:
        yield client
    finally:
        client.stop()
        client.close()


def events(caplog: pytest.LogCaptureFixture, *levels: str) -> list[str]:
    """Return the events that beat has logged at these levels."""
    records = [each for each in caplog.records if each.name == "django_zklock.beat" and each.levelname in levels]
    return [record.getMessage().split()[0] for record in records]


def write_sent(server: ZooKeeperServer, path: str, data: bytes) -> None:
    """Write a last run by hand."""
    with kazoo_client(server) as client:
        client.create(path, data, makepath=True)


# Beats.


@pytest.mark.shows("faults#the-leader-ends-freezes-or-loses-zookeeper")
@pytest.mark.slow
def test_beats__expired_and_stopped_leader(beatshop: Beatshop) -> None:
    """Of two beats one sends, and the other sends no requests; a leader whose session ends joins the queue behind it.

    When the new leader is stopped, the old one leads at once, in the same process.
    """
    first = beatshop.beat()
    beatshop.wait_sent(first)
    second = beatshop.beat()
    beatshop.wait_queue(first, second)
    second.wait_written("event=beat_waits")
    holder = snapshots.one_lock(beatshop.pool, KEY, timeout=scaled(10)).holders[0].identity
    assert str(holder).startswith("command celery beat (pid")
    asleep = beatshop.session(second)
    before = beatshop.asked(asleep)
    beatshop.wait_sent(first)
    assert beatshop.asked(asleep) == before
    assert second.pid not in beatshop.sent("pulse")

    beatshop.server.faults.expire(beatshop.session(first))
    first.wait_written("event=beat_steps_down")
    beatshop.wait_queue(second, first)
    beatshop.wait_sent(second)

    second.signal(signal.SIGTERM)
    # Less than the session timeout.
    beatshop.wait_sent(first, timeout=LONG / 2)
    assert second.wait(scaled(TIMEOUT)) == 0
    first.wait_written("event=beat_leads", 2)


@pytest.mark.shows("faults#the-leader-ends-freezes-or-loses-zookeeper")
@pytest.mark.slow
def test_beats__frozen_and_killed_leader(beatshop: Beatshop) -> None:
    """A leader that is resumed after its session, and the leader after a killed one, send no run twice.

    An entry that was due before is sent once.
    """
    write_sent(beatshop.server, f"{beatshop.path}/sent", record(hourly=1.0))
    first = beatshop.beat(timeout=SHORT)
    wait_until(lambda: beatshop.sent("hourly"), TIMEOUT, "the task that has been due for long")
    second = beatshop.beat(timeout=SHORT)
    beatshop.wait_queue(first, second)

    first.pause()
    beatshop.wait_sent(second)
    count = beatshop.sent("pulse").count(first.pid)
    first.resume()
    first.wait_written("event=beat_steps_down")
    beatshop.wait_queue(second, first)
    beatshop.wait_sent(second)
    # A run that it may have claimed before, and was about to send.
    assert beatshop.sent("pulse").count(first.pid) <= count + 1

    second.kill()
    beatshop.wait_sent(first)
    assert beatshop.sent("hourly") == [first.pid]


def test_beats__redbeat(beatshop: Beatshop) -> None:
    """RedBeat itself runs behind the lead: without its own lock, which would keep the next leader waiting."""
    first = beatshop.beat(scheduler="redbeat.RedBeatScheduler")
    beatshop.wait_sent(first)
    second = beatshop.beat(scheduler="redbeat.RedBeatScheduler")
    beatshop.wait_queue(first, second)
    assert beatshop.board.exists(f"{beatshop.root}::schedule")
    assert not beatshop.board.exists(f"{beatshop.root}::lock")
    first.signal(signal.SIGTERM)
    assert first.wait(TIMEOUT) == 0
    beatshop.wait_sent(second, timeout=LONG / 2)
    for beat in (first, second):
        assert "Signal handler" not in beat.written
        assert "Traceback" not in beat.written


@pytest.mark.slow
def test_beats__embedded_in_a_worker(beatshop: Beatshop) -> None:
    """A worker's own beat takes part, and gives up the lead at once when its worker is stopped."""
    worker = beatshop.beat(
        "worker", "-B", "--concurrency", "1", "-Q", "nothing", "--without-mingle", "--without-gossip"
    )
    wait_until(beatshop.pids_in_queue, TIMEOUT, "the worker's beat in the queue")
    (embedded,) = beatshop.pids_in_queue()
    second = beatshop.beat()
    wait_until(lambda: beatshop.pids_in_queue() == [embedded, second.pid], TIMEOUT, "both in the queue")
    worker.signal(signal.SIGTERM)
    beatshop.wait_sent(second, timeout=LONG / 2)
    assert worker.wait(scaled(TIMEOUT)) == 0


@pytest.mark.shows("faults#a-beat-cannot-reach-the-broker")
@pytest.mark.slow
def test_beats__broker_out_of_reach_of_one(beatshop: Beatshop) -> None:
    """A leader that cannot reach the broker gives up the lead, and joins the queue again when it can."""
    write_sent(beatshop.server, f"{beatshop.path}/sent", record(hourly=1.0))
    with Proxy(("127.0.0.1", beatshop.broker.port)) as proxy:
        proxy.refusing = True
        first = beatshop.beat(broker=f"redis://{proxy.hosts}/0")
        first.wait_written("event=beat_steps_down")
        second = beatshop.beat()
        beatshop.wait_sent(second)
        assert beatshop.sent("hourly") == [second.pid]
        # It does not come back to block the others either.
        assert beatshop.pids_in_queue() == [second.pid]
        assert first.written.count("event=beat_leads") == 1

        proxy.refusing = False
        beatshop.wait_queue(second, first)
        second.signal(signal.SIGTERM)
        beatshop.wait_sent(first)

        # Now while it leads alone.
        proxy.refusing = True
        proxy.cut()
        first.wait_written("event=beat_steps_down", 2)
        wait_until(lambda: beatshop.pids_in_queue() == [], TIMEOUT, "nothing in the queue")
        proxy.refusing = False
        beatshop.wait_sent(first)
    assert beatshop.sent("hourly") == [second.pid]


# What was sent.


@pytest.fixture
def lock(make_pool: MakePool) -> Lock:
    return Lock("beat", make_pool(session_timeout=SHORT, connect_timeout=2.0))


def sends_of(lock: Lock, token: int) -> Sends:
    """Return what a leader with a token of its own sends, in the session of the lock."""
    session = lock.pool.session(lock.paths[0])
    with Lock("other", lock.pool).acquire(timeout=10):
        assert session.id
    held: Any = SimpleNamespace(token=token, key=lock.key, lock=lock)
    return Sends(held, session)


@pytest.fixture
def sends(lock: Lock) -> Sends:
    """Return what a leader sends, with nothing stored."""
    sends = sends_of(lock, 1)
    sends.take_over()
    return sends


def record(**sent: float) -> bytes:
    """Return what a leader has stored."""
    return json.dumps({"token": 1, "sent": sent}).encode()


@pytest.mark.shows("faults#the-leader-ends-freezes-or-loses-zookeeper")
def test_claim__two_leaders(lock: Lock, sends: Sends) -> None:
    """A beat that leads no more claims nothing, whether the next one has claimed or not."""
    sends.claim("e")
    other = sends_of(lock, 2)
    other.take_over()
    assert other.sent.get("e") == sends.sent.get("e") != None  # noqa: E711 - both
    for name in "ef":
        with pytest.raises(TakenOver, match="another beat"):
            sends.claim(name)
    other.claim("e")
    with pytest.raises(TakenOver):
        sends.claim("e", 1.0)
    reader = sends_of(lock, 3)
    reader.take_over()
    assert (reader.sent.get("e"), reader.sent.get("f")) == (other.sent.get("e"), None)


@pytest.mark.shows("faults#the-leader-ends-freezes-or-loses-zookeeper")
def test_take_over__while_it_claims(lock: Lock, sends: Sends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the leader before claims between the read and the write of the next one is not lost."""
    other = sends_of(lock, 2)

    def ask_and_be_late(verb: str, script: Any, *, mutates: bool = False) -> Any:
        found = Sends._ask(other, verb, script, mutates=mutates)
        if verb == "read":
            monkeypatch.undo()
            sends.claim("e")
        return found

    monkeypatch.setattr(other, "_ask", ask_and_be_late)
    other.take_over()
    assert other.sent.get("e") == sends.sent.get("e") != None  # noqa: E711 - both


def test_claim__any_name(lock: Lock, sends: Sends) -> None:
    """The name of an entry may be any text."""
    names = ["a/b", "..", "täglich 4 Uhr", "%2F", "x" * 2000]
    for name in names:
        sends.claim(name)
    reader = sends_of(lock, 2)
    reader.take_over()
    assert [reader.sent.get(name) for name in names] == [sends.sent.get(name) for name in names]


def test_claim__too_many(sends: Sends) -> None:
    """More than a node can have is an error that says so, and nothing is sent to the server."""
    sends.sent = {f"{number:0100}": 1.0 for number in range(1_000)}
    with pytest.raises(ZkLockError, match="1001 entries do not fit in one node"):
        sends.claim("e")


def test_reconcile__too_many(sends: Sends) -> None:
    """Of entries that are missing the oldest are forgotten when there is no room, and none that is in the schedule."""
    begin = time.time() - 2_000
    sends.sent = {f"{number:0100}": begin + number for number in range(1_500)}
    schedule = [*list(sends.sent)[:10], *(f"new {number:0100}" for number in range(100))]
    sends.reconcile(schedule)
    kept = list(sends.sent)
    assert kept[:10] == schedule[:10]
    assert kept[10:] == [f"{number:0100}" for number in range(1_500)][10 - len(kept) :]
    assert 600 < len(kept) < 900
    # All that is in the schedule has room too.
    for name in schedule[10:]:
        sends.sent[name] = time.time()
    sends.claim(schedule[-1])


@pytest.mark.parametrize("opcode", ["create", "setData"])
def test_claim__reply_lost(server: ZooKeeperServer, lock: Lock, opcode: str) -> None:
    """A claim whose reply is lost with the connection is found after the reconnect, and not made twice."""
    sends = sends_of(lock, 1)
    cut = server.faults.cut_reply(opcode)
    sends.take_over()
    sends.claim("e")
    cut.wait(scaled(20))
    assert sends._version == 2
    assert sends.sent.get("e") is not None


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("opcode", ["sync", "getData", "create", "setData"])
def test_sends__refused_for_now(
    server: ZooKeeperServer, lock: Lock, monkeypatch: pytest.MonkeyPatch, opcode: str, done: bool
) -> None:
    """A request that the server refuses for now, done or not, is repeated: an entry is read, and claimed once."""
    refusal = Refusals(server, monkeypatch).refuse(opcode, done=done)
    sends = sends_of(lock, 1)
    sends.take_over()
    for version in (2, 3):
        sends.claim("e")
        assert sends._version == version
    assert refusal.count >= 1


def test_claim__connection_lost(server: ZooKeeperServer, sends: Sends) -> None:
    """A claim that never reached the server is made after the reconnect."""
    with server.faults.black_hole("requests") as hole:
        claim = Runner(lambda: sends.claim("e"))
        hole.requests.wait_for("setData")
        server.faults.drop()
    claim.result(10.0)
    assert sends._version == 2


def test_claim__session_ended_meanwhile(server: ZooKeeperServer, lock: Lock, sends: Sends) -> None:
    """A claim is not made in the session after the one that had the lead."""
    with server.faults.black_hole("requests") as hole:
        claim = Runner(lambda: sends.claim("e"))
        hole.requests.wait_for("setData")
        server.faults.expire()
        server.faults.drop()
    assert isinstance(claim.outcome(10.0), ZooKeeperUnavailable)
    reader = sends_of(lock, 2)
    reader.take_over()
    assert reader.sent.get("e") is None


def test_claim__deleted_by_hand(server: ZooKeeperServer, lock: Lock, sends: Sends) -> None:
    """A leader whose node was deleted by hand writes again what it knows, and claims, unless another one leads."""
    sends.claim("e")
    with kazoo_client(server) as client:
        client.delete(sends._path)
    sends.claim("f")
    sends.claim("g")
    again = sends_of(lock, 2)
    again.take_over()
    assert again.sent == sends.sent
    assert again.sent.keys() == {*"efg"}
    with kazoo_client(server) as client:
        client.delete(sends._path)
    again.claim("h")
    with pytest.raises(TakenOver):
        sends.claim("i")


def test_claim__session_ended(server: ZooKeeperServer, sends: Sends) -> None:
    """Nothing is claimed in a session that has ended."""
    refused = server.faults.refuse()
    server.faults.drop()
    with pytest.raises(ZooKeeperUnavailable, match="ZooKeeper at"):
        sends.claim("e")
    refused.end()


@pytest.mark.parametrize(
    "junk",
    [b"", b"null", b"{}", b"[" * 4000, b'{"sent": [1]}', b'{"sent": {"e": 1e999}}', b'{"sent": {"e": NaN}}',
     b'{"sent": {"e": -1}}', b'{"sent": {"e": 1' + b"0" * 400 + b"}}"],
)  # fmt: skip
def test_take_over__nonsense(server: ZooKeeperServer, lock: Lock, junk: bytes) -> None:
    """Unreadable data is ignored and overwritten."""
    sends = sends_of(lock, 1)
    write_sent(server, sends._path, junk)
    sends.take_over()
    assert sends.sent.get("e") is None
    sends.claim("e")
    assert sends.sent.get("e") is not None


@pytest.mark.shows("faults#the-clock-of-a-beat-is-wrong")
@pytest.mark.parametrize("ahead", [2 * MAX_SKEW, 10 * 365 * 24 * HOUR])
def test_last__from_the_future(
    server: ZooKeeperServer, lock: Lock, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    """A time that is too far in the future counts as now, with one warning."""
    sends = sends_of(lock, 1)
    before = time.time()
    write_sent(server, sends._path, record(e=before + ahead, f=before + ahead))
    sends.take_over()
    assert all(before <= (sends.sent.get(name) or 0) <= time.time() for name in "eef")
    assert events(caplog, "WARNING", "ERROR") == ["event=beat_sent_in_the_future"]
    # It is written, so that the next leader does not begin anew.
    other = sends_of(lock, 2)
    other.take_over()
    assert other.sent == sends.sent


def test_last__little_ahead(server: ZooKeeperServer, lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    """The time of a beat whose clock is a little ahead counts: it is the due time that was sent."""
    sends = sends_of(lock, 1)
    sent = time.time() + MAX_SKEW
    write_sent(server, sends._path, record(e=sent))
    sends.take_over()
    assert sends.sent.get("e") == sent
    assert events(caplog, "WARNING", "ERROR") == []


@pytest.mark.shows("faults#an-entry-leaves-the-schedule-and-comes-back")
@pytest.mark.parametrize(("missing", "is_kept"), [(KEEP_GONE - 60, True), (KEEP_GONE + 60, False)])
def test_reconcile__missing(lock: Lock, sends: Sends, clocks: Clocks, missing: float, is_kept: bool) -> None:
    """An entry that is missing goes on when it comes back, unless a leader began long after its last run."""
    sends.claim("e")
    sends.claim("f")
    clocks.advance(missing)
    without = sends_of(lock, 2)
    without.take_over()
    without.reconcile(["f"])
    without.claim("f")
    again = sends_of(lock, 3)
    again.take_over()
    again.reconcile(["e", "f"])
    assert again.sent.get("e") == (sends.sent.get("e") if is_kept else None)
    assert again.sent.get("f") == without.sent.get("f") != sends.sent.get("f")


def test_take_back(lock: Lock, sends: Sends) -> None:
    """A claim without a message is undone for all beats."""
    sends.claim("e")
    before = sends.sent.get("e")
    assert before is not None
    sends.claim("e")
    sends.claim("e", before)
    other = sends_of(lock, 2)
    other.take_over()
    assert sends.sent.get("e") == other.sent.get("e") == before


def test_take_over__refused(server: ZooKeeperServer, lock: Lock) -> None:
    """What this client may not read is an error, and not missing."""
    sends = sends_of(lock, 1)
    write_sent(server, sends._path, b"")
    with kazoo_client(server) as client:
        client.set_acls(sends._path, [make_digest_acl("somebody", "else", all=True)])
    with pytest.raises(ZkLockError, match="NoAuth"):
        sends.take_over()


# The scheduler.


class Recording(Scheduler):
    """Records what it sends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sent: list[str | None] = []
        # The number of sent tasks at each time that it stored.
        self.stored: list[int] = []
        super().__init__(*args, **options)

    def sync(self) -> None:
        self.stored.append(len(self.sent))

    def send_task(self, *args: Any, **_options: Any) -> None:
        self.sent.append(args[0])


class Failing(Recording):
    """Fails to store."""

    def close(self) -> None:
        raise OSError("the disk is full")


@pytest.fixture
def app(server: ZooKeeperServer, root: str, settings: Settings) -> Iterator[Celery]:
    """Return an app whose beats record what they send, with one entry an hour."""
    settings.ZKLOCK = {
        "default": {"HOSTS": server.hosts, "ROOT": root, "SESSION_TIMEOUT": scaled(15), "CONNECT_TIMEOUT": scaled(2)}
    }
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.conf.update(
        zklock_beat_scheduler=f"{__name__}:Recording",
        beat_schedule={"hourly": {"task": "hourly", "schedule": HOUR}},
        beat_max_loop_interval=0.05,
    )
    yield app
    app.close()
    connections.reset()


MakeScheduler = Callable[[], LeaderScheduler]


@pytest.fixture
def make_scheduler(app: Celery) -> Iterator[MakeScheduler]:
    """Return a function that makes schedulers, like beats in one process."""
    made: list[LeaderScheduler] = []

    def make() -> LeaderScheduler:
        made.append(LeaderScheduler(app))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def leading(scheduler: LeaderScheduler) -> Any:
    """Tick until the scheduler leads, and return the one that sends."""

    def ticked() -> Any:
        assert scheduler.tick() == 0.0
        return scheduler._scheduler

    return wait_until(ticked, 10.0, "the lead")


def test_lead__nobody_before(make_scheduler: MakeScheduler) -> None:
    """The first leader sends the entries that its own scheduler finds due, and has the schedule."""
    scheduler = make_scheduler()
    assert scheduler.schedule == {}
    assert leading(scheduler).sent == []
    assert list(scheduler.schedule) == ["hourly"]


def test_lead__in_a_full_process(server: ZooKeeperServer, make_scheduler: MakeScheduler) -> None:
    """The leader writes in the session that has the lead, so that it writes nothing after the end of that session."""
    pool = connections["default"]
    object.__setattr__(pool.options, "budget", 1)
    home = Lock("other", pool).acquire(timeout=10)
    led = leading(make_scheduler())
    (session,) = pool.overflow_sessions()
    assert server.owner(led.held.node) == session.id
    server.requests.clear()
    led.sends.claim("hourly")
    writes = [each for each in server.requests.all() if each.opcode.label in {"create", "setData"}]
    assert {each.session for each in writes} == {session.id}
    home.release()


@pytest.mark.parametrize(("ago", "sends"), [(2 * HOUR, ["hourly"]), (HOUR / 2, [])])
def test_lead__after_another(
    server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler, ago: float, sends: list[str]
) -> None:
    """A scheduler without stored state begins where the last leader has stopped."""
    sent = time.time() - ago
    write_sent(server, f"{root}/celery-beat:unit/sent", record(hourly=sent))
    scheduler = make_scheduler()
    led = leading(scheduler)
    scheduler.tick()
    assert led.sent == sends
    entry = led.schedule["hourly"]
    assert entry.is_due()[1] == pytest.approx(HOUR if sends else HOUR - ago, abs=60)


@pytest.mark.parametrize(("stored", "written"), [(5 * HOUR, 60.0), (60.0, 5 * HOUR)])
def test_lead__schedule_file(
    app: Celery, tmp_path: Path, server: ZooKeeperServer, root: str, stored: float, written: float
) -> None:
    """An entry that another leader has sent is not sent again, with an older or a newer schedule file."""
    app.conf.zklock_beat_scheduler = "celery.beat:PersistentScheduler"
    now = time.time()
    file = PersistentScheduler(app, schedule_filename=str(tmp_path / "schedule"))
    file.schedule["hourly"].last_run_at = datetime.fromtimestamp(now - stored, UTC)
    file.close()
    write_sent(server, f"{root}/celery-beat:unit/sent", record(hourly=now - written))
    scheduler = LeaderScheduler(app, schedule_filename=str(tmp_path / "schedule"))
    led = leading(scheduler)
    entry = led.schedule["hourly"]
    assert entry.last_run_at.timestamp() == pytest.approx(now - 60)
    assert not led.is_due(entry)[0]
    scheduler.close()


def test_lead__new_entry(server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler) -> None:
    """An entry that is added while a beat leads begins as its scheduler says, whatever was sent by that name before."""
    write_sent(server, f"{root}/celery-beat:unit/sent", record(new=1.0))
    scheduler = make_scheduler()
    led = leading(scheduler)
    led.add(name="new", task="new", schedule=HOUR)
    scheduler.tick()
    assert list(led.schedule) == ["hourly", "new"]
    assert led.sent == []


def test_lead__nothing_returned(make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may return nothing from its tick, as Celery's loop allows."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    monkeypatch.setattr(led, "tick", lambda: None)
    assert scheduler.tick() == 0.0


@pytest.mark.shows("faults#the-clock-of-a-beat-is-wrong")
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_lead__after_another_clock(
    app: Celery, make_scheduler: MakeScheduler, clocks: Clocks, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    """A leader whose clock is wrong silences no other."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    first, second = make_scheduler(), make_scheduler()
    clocks.here = max(ahead, 0.0)
    led = leading(first)
    wait_until(lambda: first.tick() or len(led.sent) > 1, 10.0, "two")
    first.close()
    clocks.here = min(ahead, 0.0)
    led = leading(second)
    wait_until(lambda: second.tick() or len(led.sent) > 2, 10.0, "three")
    # The second one does not accept the time that the first has written.
    assert events(caplog, "WARNING", "ERROR") == ["event=beat_sent_in_the_future"]


def test_lead__schedule_file_from_the_future(app: Celery, tmp_path: Path) -> None:
    """A last run that was stored while the clock was ahead counts as sent when it is found."""
    app.conf.zklock_beat_scheduler = "celery.beat:PersistentScheduler"
    file = PersistentScheduler(app, schedule_filename=str(tmp_path / "schedule"))
    file.schedule["hourly"].last_run_at = datetime.fromtimestamp(time.time() + 5 * HOUR, UTC)
    file.close()
    scheduler = LeaderScheduler(app, schedule_filename=str(tmp_path / "schedule"))
    led = leading(scheduler)
    scheduler.tick()
    assert led.schedule["hourly"].last_run_at.timestamp() == pytest.approx(time.time(), abs=60)
    scheduler.close()


@pytest.mark.shows("faults#an-entry-leaves-the-schedule-and-comes-back")
@pytest.mark.parametrize(
    ("gone", "sends"), [(KEEP_GONE + HOUR, []), (2 * HOUR, ["hourly"])], ids=["removed", "rollout"]
)
def test_lead__entry_is_back(
    app: Celery, make_scheduler: MakeScheduler, clocks: Clocks, gone: float, sends: list[str]
) -> None:
    """An entry that was missing for long begins anew; one that only an older release lacked is sent late."""
    entry = {"task": "hourly", "schedule": HOUR}
    first, without, again = make_scheduler(), make_scheduler(), make_scheduler()
    led = leading(first)
    led.sends.claim("hourly")
    first.close()
    clocks.advance(gone)
    app.conf.beat_schedule = {"other": entry}
    led = leading(without)
    without.tick()
    led.sends.claim("other")
    without.close()
    app.conf.beat_schedule = {"hourly": entry}
    led = leading(again)
    again.tick()
    assert led.sent == sends
    assert led.schedule["hourly"].is_due()[1] == pytest.approx(HOUR, abs=60)


@pytest.mark.parametrize(("start", "is_kept"), [(-HOUR / 4, True), (-HOUR, False)], ids=["before", "since"])
def test_lead__start_time(
    server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler, start: float, is_kept: bool
) -> None:
    """A run before the start time of an entry of django-celery-beat does not keep it from starting."""
    now = time.time()
    write_sent(server, f"{root}/celery-beat:unit/sent", record(hourly=now - HOUR / 2))
    scheduler = make_scheduler()
    led = leading(scheduler)
    entry = led.schedule["hourly"]
    entry.model = SimpleNamespace(start_time=datetime.fromtimestamp(now + start, UTC))
    long_ago = datetime.fromtimestamp(1.0, UTC)
    entry.last_run_at = long_ago
    led._load_last_run(entry)
    assert (entry.last_run_at == long_ago) == is_kept


# The broker.


def make_due(led: Any) -> datetime:
    """Store a run of every entry two hours ago."""
    moment = datetime.fromtimestamp(time.time() - 2 * HOUR, UTC)
    for entry in led.schedule.values():
        entry.last_run_at = moment
    led._heap = None
    return moment


def out_of_reach(*_args: Any, **_options: Any) -> None:
    raise OperationalError("the connection was reset")


@pytest.mark.shows("faults#a-beat-cannot-reach-the-broker")
def test_broker__cannot_be_reached(app: Celery, make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that cannot reach the broker claims nothing, and joins the queue again when it can."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    first, second = make_scheduler(), make_scheduler()
    led = leading(first)
    monkeypatch.setattr(Connection, "ensure_connection", out_of_reach)
    wait_until(lambda: first.tick() or first._broker_is_away, 10.0, "stepped down")
    assert led.sent == []
    assert led.sends.sent.get("often") is None
    # The queue is empty, so the second one leads, and cannot reach the broker either.
    led = leading(second)
    wait_until(lambda: second.tick() or second._broker_is_away, 10.0, "stepped down too")
    retry_at = first._retry_at
    wait_until(lambda: first.tick() or first._retry_at > retry_at, 10.0, "probed again")
    assert first._broker_is_away
    monkeypatch.undo()
    led = leading(first)
    wait_until(lambda: first.tick() or led.sent, 10.0, "sent")


@pytest.mark.shows("faults#a-beat-cannot-reach-the-broker")
def test_broker__breaks_off(app: Celery, make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that could not be sent, because the broker went away after the claim, is sent when it is back."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    before = make_due(led)
    failures: list[None] = []

    def break_off(*_args: Any, **_options: Any) -> None:
        failures.append(None)
        monkeypatch.setattr(Connection, "ensure_connection", out_of_reach)
        out_of_reach()

    led.send_task = break_off
    wait_until(lambda: scheduler.tick() or failures, 10.0, "the failure")
    assert led.sends.sent.get("hourly") == before.timestamp()
    assert led.schedule["hourly"].last_run_at == before
    assert led.stored[-1] == 0
    wait_until(lambda: scheduler.tick() or scheduler._scheduler is None, 10.0, "it steps down")
    assert len(failures) == 1
    monkeypatch.undo()
    led = leading(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "sent")
    assert led.schedule["hourly"].last_run_at.timestamp() == pytest.approx(time.time(), abs=60)


@pytest.mark.shows("faults#a-beat-cannot-reach-the-broker")
def test_broker__breaks_off_each_time(
    app: Celery, make_scheduler: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that breaks the connection each time is given up, and does not delay others for long."""
    app.conf.beat_schedule = {name: {"task": name, "schedule": HOUR} for name in ("bad", "good")}
    scheduler = make_scheduler()
    led = leading(scheduler)
    make_due(led)
    send = led.send_task

    def send_good(name: str, *args: Any, **options: Any) -> None:
        if name == "bad":
            out_of_reach()
        send(name, *args, **options)

    led.send_task = send_good
    wait_until(lambda: scheduler.tick() or events(caplog, "ERROR").count("event=beat_gives_up"), 20.0, "given up")
    wait_until(lambda: scheduler.tick() or led.sent == ["good"], 10.0, "the other")
    assert not led.schedule["bad"].is_due()[0]
    assert leading(scheduler) is led


def test_broker__disturbed_for_a_moment(make_scheduler: MakeScheduler) -> None:
    """The attempts to send are some time apart: a broker that breaks connections for a moment loses no run."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    make_due(led)
    send, tried, producers = led.send_task, [], []

    def send_later(*args: Any, producer: Any, **options: Any) -> None:
        tried.append(time.monotonic())
        producers.append(producer)
        if len(tried) < MAX_ATTEMPTS:
            out_of_reach()
        send(*args, **options)

    led.send_task = send_later
    wait_until(lambda: scheduler.tick() or led.sent, 20.0, "sent")
    assert (led.sent, len(tried)) == (["hourly"], MAX_ATTEMPTS)
    assert all(later - earlier >= RETRY_INTERVAL for earlier, later in itertools.pairwise(tried))
    # Each goes over a connection of its own.
    assert all(later is not earlier for earlier, later in itertools.pairwise(producers))
    assert not led.schedule["hourly"].is_due()[0]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_send__ended(make_scheduler: MakeScheduler, caplog: pytest.LogCaptureFixture, end: type[BaseException]) -> None:
    """A beat that is ended during a send says that the run may be lost: it is claimed."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    before = make_due(led)

    def end_it(*_args: Any, **_options: Any) -> None:
        raise end

    led.send_task = end_it
    with pytest.raises(end):
        wait_until(scheduler.tick, 10.0, "the end")
    assert "event=beat_not_sent" in events(caplog, "ERROR")
    assert led.sends.sent["hourly"] > before.timestamp()


def test_broker__refuses(app: Celery, make_scheduler: MakeScheduler) -> None:
    """A message that the broker refuses is not sent again, as always with Celery."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    make_due(led)
    tried = []

    def refuse(*args: Any, **_options: Any) -> None:
        tried.append(args)
        raise ValueError("no such queue")

    led.send_task = refuse
    wait_until(lambda: scheduler.tick() or tried, 10.0, "tried")
    assert led.sends.sent.get("hourly") == pytest.approx(time.time(), abs=60)
    assert not led.schedule["hourly"].is_due()[0]


def test_broker__error_of_another_tick(make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that connects in a tick of its own, like RedBeat, does not end its beat."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    monkeypatch.setattr(led, "tick", out_of_reach)
    scheduler.tick()
    assert scheduler._scheduler is None
    wait_until(lambda: scheduler.tick() or scheduler._scheduler, 10.0, "the lead again")


def test_broker__send_without_a_claim(make_scheduler: MakeScheduler) -> None:
    """A run that was not claimed, by a scheduler with a tick of its own, is not taken back either."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    led.sends.claim("hourly")
    sent = led.sends.sent.get("hourly")
    led.send_task = out_of_reach
    with pytest.raises(SchedulingError):
        led.apply_async(led.schedule["hourly"])
    assert led.sends.sent.get("hourly") == sent


def test_send__lead_lost_after_the_claim(
    server: ZooKeeperServer, make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that a leader has claimed and may no longer send is due again, and the next leader sends it."""
    first, second = make_scheduler(), make_scheduler()
    led = leading(first)
    make_due(led)
    claim: Callable[[str], None] = led.sends.claim

    def claim_and_lose(name: str) -> None:
        monkeypatch.undo()
        claim(name)
        with kazoo_client(server) as client:
            client.delete(led.held.node)
        wait_until(lambda: led.held.lost, 10.0, "the loss")

    monkeypatch.setattr(led.sends, "claim", claim_and_lose)
    wait_until(lambda: first.tick() or led.held.lost, 10.0, "the claim")
    assert led.sent == []
    led = leading(second)
    wait_until(lambda: second.tick() or led.sent == ["hourly"], 10.0, "sent")


def test_broker__row_of_a_database(make_scheduler: MakeScheduler) -> None:
    """The count of django-celery-beat for a run that was not sent is corrected."""
    scheduler = make_scheduler()
    led = leading(scheduler)
    entry = led.schedule["hourly"]
    saved = []
    before = datetime.fromtimestamp(1.0, UTC)
    entry.model = SimpleNamespace(last_run_at=None, total_run_count=3, no_changes=False)
    entry.save = lambda: saved.append((entry.model.last_run_at, entry.model.total_run_count))
    entry.last_run_at = before
    led.sends.claim("hourly")
    led._claimed = "hourly"
    led._take_back(entry)
    assert saved == [(before, 2)]


@pytest.mark.shows("faults#the-leader-ends-freezes-or-loses-zookeeper")
def test_tick__claimed_by_another(app: Celery, make_scheduler: MakeScheduler) -> None:
    """A leader that does not know yet that it has lost the lead sends nothing, and steps down."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = leading(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "the first")
    sends_of(led.held.lock, 2).take_over()
    count = len(led.sent)
    # Celery looks at an entry when it has planned to, which may be later than the entry is due.
    wait_until(lambda: scheduler.tick() or scheduler._scheduler is None, 10.0, "it steps down")
    assert len(led.sent) == count
    led = leading(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "the next")


def test_tick__read_again(app: Celery, make_scheduler: MakeScheduler) -> None:
    """An entry whose database rounds its last run to whole seconds is not claimed again."""
    app.conf.beat_schedule = {
        "often": {"task": "often", "schedule": 0.1},
        "hourly": {"task": "hourly", "schedule": HOUR},
    }
    scheduler = make_scheduler()
    led = leading(scheduler)
    led.sends.claim("hourly")
    version = led.sends._version
    entry = led.schedule["hourly"]
    entry.last_run_at = datetime.fromtimestamp(1.0, UTC)
    assert led.is_due(entry) == (False, 0.0)
    assert led.sends._version == version
    assert led._heap is None, "or it would stand before the others"
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "another")


def test_tick__broken_lock(app: Celery, server: ZooKeeperServer, make_scheduler: MakeScheduler) -> None:
    """A leader whose node was deleted claims nothing, although its session lives."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = leading(scheduler)
    entry = led.schedule["often"]
    with kazoo_client(server) as client:
        client.delete(led.held.node)
    wait_until(lambda: led.held.lost and entry.is_due()[0], 10.0, "lost, and something due")
    assert not led.is_due(entry)[0]
    assert led.sends.sent.get("often") is None
    assert leading(scheduler) is not led


def test_tick__stores(app: Celery, make_scheduler: MakeScheduler) -> None:
    """The scheduler stores after each sent task, and beat's own loop stores from time to time."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.2}}
    scheduler = make_scheduler()
    led = leading(scheduler)
    assert led.stored == [0]
    wait_until(lambda: scheduler.tick() or len(led.sent) == 2, 10.0, "two")
    assert led.stored == [0, 1, 2]


def test_signals__acquired_and_contended(make_scheduler: MakeScheduler) -> None:
    """The lead sends the signals of a lock."""
    recorder = Recorder()
    recorder.connect()
    try:
        first, second = make_scheduler(), make_scheduler()
        leading(first)
        wait_until(lambda: second.tick() or "contended" in recorder.names, 10.0, "the wait")
        assert recorder.names == ["acquired", "contended"]
        assert recorder.facts("acquired")["key"] == "celery-beat:unit"
    finally:
        recorder.disconnect()


def test_tick__cannot_claim(
    app: Celery, server: ZooKeeperServer, make_scheduler: MakeScheduler, settings: Settings
) -> None:
    """An entry that cannot be claimed is not sent."""
    settings.ZKLOCK = {"default": {**settings.ZKLOCK["default"], "SESSION_TIMEOUT": scaled(SHORT)}}
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = leading(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "the first")
    with server.faults.refuse():
        server.faults.drop()
        entry = led.schedule["often"]
        wait_until(lambda: entry.is_due()[0], 10.0, "due")
        assert not led.is_due(entry)[0]
        assert led.held.lost
        assert not led.is_due(entry)[0]
        with pytest.raises(LockLost):
            led.apply_async(entry)
        count = len(led.sent)
        scheduler.tick()
        assert scheduler._scheduler is None
    assert len(led.sent) == count
    leading(scheduler)


@pytest.mark.shows("faults#the-leader-ends-freezes-or-loses-zookeeper")
def test_tick__without_zookeeper(
    app: Celery,
    server: ZooKeeperServer,
    make_scheduler: MakeScheduler,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A beat without ZooKeeper waits for it; one that loses it sends nothing until it is back, and tells each once."""
    settings.ZKLOCK = {"default": {**settings.ZKLOCK["default"], "SESSION_TIMEOUT": scaled(SHORT)}}
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    caplog.set_level("DEBUG", "django_zklock.beat")
    cannot_stand = "event=beat_cannot_stand"
    scheduler = make_scheduler()
    server.stop()
    wait_until(lambda: scheduler.tick() or events(caplog, "WARNING") == [cannot_stand], 20.0, "told")
    server.start()
    led = leading(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "sent")
    server.stop()
    wait_until(lambda: scheduler.tick() or scheduler._scheduler is None, 20.0, "it steps down")
    count = len(led.sent)
    told = events(caplog, "DEBUG").count(cannot_stand)
    wait_until(lambda: scheduler.tick() or events(caplog, "DEBUG").count(cannot_stand) > told, 20.0, "it tries again")
    assert len(led.sent) == count
    server.start()
    led = leading(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "sent again")
    assert events(caplog, "WARNING").count(cannot_stand) == 2


def test_tick__asked_to_let_go(make_scheduler: MakeScheduler, server: ZooKeeperServer) -> None:
    """A leader that is asked to release hands over to the next beat, and joins the queue behind it."""
    first, second = make_scheduler(), make_scheduler()
    led = leading(first)
    second.tick()
    actions.revoke(led.held.lock.pool, led.held.node, "maintenance", timeout=60)
    wait_until(lambda: first.tick() or first._scheduler is None, 10.0, "the first stepped down")
    leading(second)
    first.tick()
    assert first._scheduler is None
    second.close()
    leading(first)


def test_lead__last_runs_unreadable(
    server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """A beat that cannot read the last runs does not lead, warns once, and tries again."""
    page = f"{root}/celery-beat:unit/sent"
    write_sent(server, page, b"")
    scheduler = make_scheduler()
    with kazoo_client(server) as client:
        before, _ = client.get_acls(page)
        client.set_acls(page, [make_acl("world", "anyone", admin=True)])
        wait_until(lambda: scheduler.tick() or "beat_cannot_stand" in caplog.text, 10.0, "the refusal")
        assert scheduler._scheduler is None
        client.set_acls(page, before)
    leading(scheduler)


def test_close__cannot_store(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """The lead is given up even if the scheduler cannot store; closing again does nothing."""
    app.conf.zklock_beat_scheduler = f"{__name__}:Failing"
    first, second = LeaderScheduler(app), LeaderScheduler(app)
    leading(first)
    second.tick()
    first.close()
    assert "event=beat_not_stored" in caplog.text
    leading(second)
    first.close()
    second.close()


def test_configuration__names(app: Celery) -> None:
    """Key and alias of the lock and the scheduler that sends come from the configuration; making it opens nothing."""
    app.conf.update(zklock_beat_key="lead", zklock_beat_scheduler="celery.beat:PersistentScheduler")
    scheduler = LeaderScheduler(app, lazy=True, schedule_filename="/nowhere/schedule")
    assert scheduler.info.splitlines() == [
        "    . lead -> lead, ZKLOCK['default']",
        "    . sends -> celery.beat.PersistentScheduler",
        "    . db -> /nowhere/schedule",
    ]
    assert scheduler.max_interval == 0.05
    assert not list(connections["default"].sessions())
    scheduler.sync()
    scheduler.close()


def test_close__in_the_middle_of_a_send(app: Celery, make_scheduler: MakeScheduler) -> None:
    """A signal handler that closes beat during a send ends beat, and leaves the connection to the send."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = leading(scheduler)

    def send_and_be_told(*_args: Any, **_options: Any) -> None:
        # Like Celery's handler for SIGTERM. Its exception is replaced by another one, from a `finally` of the send.
        scheduler.close()
        led.sent.append("connected" if "connection" in vars(led) else "closed")
        raise ValueError("I/O operation on closed file")

    led.send_task = send_and_be_told
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "the send")
    assert led.sent == ["connected"]
    with pytest.raises(SystemExit):
        scheduler.tick()
    scheduler.close()
    assert scheduler._scheduler is None
    leading(make_scheduler())


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("zklock_beat_scheduler", "django_zklock.contrib.celery.beat:LeaderScheduler", ImproperlyConfigured),
        ("zklock_beat_scheduler", "celery.beat:Nobody", AttributeError),
        ("zklock_beat_using", "absent", ImproperlyConfigured),
    ],
)
def test_configuration__wrong(app: Celery, option: str, value: str, error: type[Exception]) -> None:
    """An error in the configuration ends beat when it starts, and not when it gets the lead."""
    app.conf[option] = value
    with pytest.raises(error):
        LeaderScheduler(app, lazy=True)
