"""Several beats, of which one sends: real ones as processes, and the leader's ledger by itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from django.core.exceptions import ImproperlyConfigured
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl
from services.project import PROJECT, ProjectProcess
from services.redis import Redis

from django_zklock.connections import connections
from django_zklock.contrib.celery.beat import LeaderScheduler
from django_zklock.contrib.celery.beat.ledger import MAX_SKEW, Ledger
from django_zklock.exceptions import LockLost, ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import LoggedRequest, Opcode, ZooKeeperServer
from django_zklock.zk import revocation
from django_zklock.zk.inspection import survey
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.bystanders import Recorder
from tests.zk.onlooker import MakePool, wait_until
from tests.zk.runner import Runner

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.celery]

HERE = Path(__file__).resolve().parent
KEY = "celery-beat:beatshop"
LONG, SHORT = 40.0, 2.0
# Starting Python with Django and Celery, on a busy machine.
PATIENCE = 30.0
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
        return [sys.executable, "-m", "celery", "-A", "beatshop", *self._command, "-l", "INFO", "-s", schedule]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._environment}

    def is_ready(self) -> bool:
        return "beat: Starting" in self.written

    @property
    def written(self) -> str:
        return self.log_tail(100_000)

    def wait_written(self, event: str, count: int = 1) -> None:
        """Wait until something was logged so often."""
        wait_until(
            lambda: self.written.count(event) >= count or not self.is_running(), PATIENCE, f"{event}\n{self.log_tail()}"
        )
        assert self.is_running(), self.log_tail(60)


class Beatshop:
    """Beats of one app, what they have sent, and who leads."""

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
            PoolOptions(connection=ConnectionOptions(hosts=server.hosts, session_timeout=20.0), root=self.root),
        )

    def beat(self, *command: str, timeout: float = LONG, scheduler: str = "celery.beat:Scheduler") -> Beat:
        """Start a beat with a schedule file of its own."""
        environment = {
            "DJANGO_SETTINGS_MODULE": "beatshop.settings",
            "CELERY_BROKER_URL": self.broker.url,
            "ZOOKEEPER_HOSTS": self.server.hosts,
            "TESTPROJECT_QUEUE": self.queue,
            "BEATSHOP_ROOT": self.root,
            "BEATSHOP_SESSION_TIMEOUT": str(timeout),
            "BEATSHOP_SCHEDULE": json.dumps({"pulse": 0.2, "hourly": HOUR}),
            "BEATSHOP_SCHEDULER": scheduler,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(PROJECT), *filter(None, sys.path)]),
        }
        beat = Beat(environment, *command)
        self.beats.append(beat)
        beat.start()
        return beat

    def sent(self, name: str) -> list[int]:
        """Give the pids of those who have sent a task, in order."""
        messages = [json.loads(message)["headers"] for message in reversed(self.board.lrange(self.queue, 0, -1))]
        origins = [headers["origin"] for headers in messages if headers["task"] == f"beatshop.{name}"]
        return [int(origin.partition("@")[0].removeprefix("gen")) for origin in origins]

    def wait_sent(self, beat: Beat, count: int = 3, timeout: float = PATIENCE) -> None:
        """Wait until a beat has sent the pulse so often from now on."""
        already = self.sent("pulse").count(beat.pid)
        wait_until(
            lambda: self.sent("pulse").count(beat.pid) >= already + count, timeout, f"a pulse\n{beat.log_tail()}"
        )

    def line(self) -> list[int]:
        """Give the pids of the beats in the line, the leader first."""
        places = survey.line(self.pool, KEY, timeout=5.0).places
        return [place.identity.pid for place in places if place.identity]

    def wait_line(self, *beats: Beat, timeout: float = PATIENCE) -> None:
        pids = [beat.pid for beat in beats]
        wait_until(lambda: self.line() == pids, timeout, f"{pids} in line, {self.line()}")

    def session(self, beat: Beat) -> int:
        """Give the number of a beat's session."""
        places = survey.line(self.pool, KEY, timeout=5.0).places
        return next(place.session_id for place in places if place.identity and place.identity.pid == beat.pid)

    def asked(self, session: int) -> list[LoggedRequest]:
        """Give what a session has asked for, besides showing that it lives."""
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
    """Give a server of the test's own."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def beatshop(server: ZooKeeperServer, broker: Redis) -> Iterator[Beatshop]:
    beatshop = Beatshop(server, broker)
    yield beatshop
    beatshop.close()


def write_sent(server: ZooKeeperServer, path: str, data: bytes) -> None:
    """Write a page of the ledger by hand."""
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=20)
    try:
        client.create(path, data, makepath=True)
    finally:
        client.stop()
        client.close()


# Beats.


@pytest.mark.slow
def test_beats__expired_and_stopped_leader(beatshop: Beatshop) -> None:
    """Of two beats one sends, and the other asks for nothing; a leader whose session ends gets in line behind it.

    When the new leader is stopped, the old one leads at once, in the process that it always was.
    """
    first = beatshop.beat()
    beatshop.wait_sent(first)
    second = beatshop.beat()
    beatshop.wait_line(first, second)
    second.wait_written("event=beat_waits")
    holder = survey.line(beatshop.pool, KEY, timeout=5.0).holders[0].identity
    assert str(holder).startswith("command celery beat (pid")
    asleep = beatshop.session(second)
    before = beatshop.asked(asleep)
    beatshop.wait_sent(first)
    assert beatshop.asked(asleep) == before
    assert second.pid not in beatshop.sent("pulse")

    beatshop.server.faults.expire(beatshop.session(first))
    first.wait_written("event=beat_steps_down")
    beatshop.wait_line(second, first)
    beatshop.wait_sent(second)

    second.signal(signal.SIGTERM)
    # Its session would live for longer.
    beatshop.wait_sent(first, timeout=LONG / 2)
    assert second.wait(PATIENCE) == 0
    first.wait_written("event=beat_leads", 2)


@pytest.mark.slow
def test_beats__frozen_and_killed_leader(beatshop: Beatshop) -> None:
    """A leader that wakes up after its session sends nothing that is not its own; nor does the next after a killed one.

    What has been due before all that is sent once.
    """
    write_sent(beatshop.server, f"{beatshop.path}/sent/hourly", json.dumps({"v": 1, "sent": 1.0}).encode())
    first = beatshop.beat(timeout=SHORT)
    wait_until(lambda: beatshop.sent("hourly"), PATIENCE, "the task that has been due for long")
    second = beatshop.beat(timeout=SHORT)
    beatshop.wait_line(first, second)

    first.pause()
    beatshop.wait_sent(second)
    count = beatshop.sent("pulse").count(first.pid)
    first.resume()
    first.wait_written("event=beat_steps_down")
    beatshop.wait_line(second, first)
    beatshop.wait_sent(second)
    # What it may have claimed before, and was about to send.
    assert beatshop.sent("pulse").count(first.pid) <= count + 1

    second.kill()
    beatshop.wait_sent(first)
    assert beatshop.sent("hourly") == [first.pid]


@pytest.mark.slow
def test_beats__without_zookeeper(beatshop: Beatshop) -> None:
    """A beat that finds no ZooKeeper waits for it; one that loses it sends nothing until it is back."""
    beatshop.server.stop()
    beat = beatshop.beat(timeout=SHORT)
    beat.wait_written("event=beat_cannot_stand")
    assert beatshop.sent("pulse") == []
    beatshop.server.start()
    beatshop.wait_sent(beat)
    beatshop.server.stop()
    beat.wait_written("event=beat_steps_down")
    count = len(beatshop.sent("pulse"))
    beat.wait_written("event=beat_cannot_stand", 2)
    assert len(beatshop.sent("pulse")) == count
    beatshop.server.start()
    beatshop.wait_sent(beat)
    assert beat.written.count("event=beat_cannot_stand") == 2, "told once an outage"


@pytest.mark.slow
def test_beats__embedded_in_a_worker(beatshop: Beatshop) -> None:
    """A worker's own beat takes part, and gives up the lead at once when its worker is stopped."""
    worker = beatshop.beat(
        "worker", "-B", "--concurrency", "1", "-Q", "nothing", "--without-mingle", "--without-gossip"
    )
    wait_until(beatshop.line, PATIENCE, "the worker's beat in line")
    (embedded,) = beatshop.line()
    second = beatshop.beat()
    wait_until(lambda: beatshop.line() == [embedded, second.pid], PATIENCE, "both in line")
    worker.signal(signal.SIGTERM)
    beatshop.wait_sent(second, timeout=LONG / 2)
    assert worker.wait(PATIENCE) == 0


# The ledger.


@pytest.fixture
def lock(make_pool: MakePool) -> Lock:
    return Lock("beat", make_pool(session_timeout=SHORT, connect_timeout=2.0))


@pytest.fixture
def ledger(lock: Lock) -> Ledger:
    """Give the ledger of a leader who finds nothing written."""
    ledger = Ledger(lock)
    ledger.load()
    return ledger


def path_of(ledger: Ledger, name: str) -> str:
    return f"{ledger._path}/{name}"


def test_claim__two_leaders(lock: Lock, ledger: Ledger) -> None:
    """Of two who both hold themselves for the leader one claims an entry, and the other learns when it was sent."""
    other = Ledger(lock)
    other.load()
    for _ in range(2):
        assert ledger.claim("e", 1)
        assert not other.claim("e", 2)
        assert other.last_sent("e") == ledger.last_sent("e") != None  # noqa: E711 - all three
    assert other.claim("e", 2)
    assert not ledger.claim("e", 1)
    reader = Ledger(lock)
    reader.load()
    assert reader.last_sent("e") == other.last_sent("e")


def test_claim__any_name(lock: Lock, ledger: Ledger) -> None:
    """The name of an entry may be any text."""
    names = ["a/b", "..", "täglich 4 Uhr", "%2F", "x" * 2000]
    assert all(ledger.claim(name, 1) for name in names)
    reader = Ledger(lock)
    reader.load()
    assert [reader.last_sent(name) for name in names] == [ledger.last_sent(name) for name in names]
    assert len(reader._pages) == len(names)


@pytest.mark.parametrize(("opcode", "before"), [("create", 0), ("setData", 1)])
def test_claim__reply_lost(server: ZooKeeperServer, ledger: Ledger, opcode: str, before: int) -> None:
    """A claim whose answer is lost with the connection is found again after the reconnect, and not made twice."""
    # So that what is above the entries is there; it is asked for with each new one all the same.
    assert ledger.claim("other", 1)
    for _ in range(before):
        assert ledger.claim("e", 1)
    cut = server.faults.cut_reply(opcode)
    assert ledger.claim("e", 1)
    cut.wait(5.0)
    page = ledger._pages["e"]
    assert page.version == before
    assert page.sent is not None


def test_claim__connection_lost(server: ZooKeeperServer, ledger: Ledger) -> None:
    """A claim that never reached the server is made after the reconnect."""
    assert ledger.claim("e", 1)
    with server.faults.black_hole("requests") as hole:
        claim = Runner(lambda: ledger.claim("e", 1))
        hole.requests.wait_for("setData")
        server.faults.drop()
    assert claim.result(10.0)


def test_claim__session_ended_meanwhile(server: ZooKeeperServer, ledger: Ledger) -> None:
    """A claim is not made in the session after the one that had the lead."""
    assert ledger.claim("e", 1)
    with server.faults.black_hole("requests") as hole:
        claim = Runner(lambda: ledger.claim("e", 1))
        hole.requests.wait_for("setData")
        server.faults.expire()
        server.faults.drop()
    assert isinstance(claim.outcome(10.0), ZooKeeperUnavailable)
    ledger.load()
    assert ledger._pages["e"].version == 0


@pytest.mark.parametrize("deleted", ["e", ""])
def test_claim__deleted_by_hand(server: ZooKeeperServer, ledger: Ledger, deleted: str) -> None:
    """An entry that somebody has deleted, or the whole ledger, is written anew."""
    assert ledger.claim("e", 1)
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=20)
    client.delete(path_of(ledger, deleted).rstrip("/"), recursive=True)
    client.stop()
    client.close()
    assert ledger.claim("e", 1)
    assert ledger._pages["e"].version == 0


def test_claim__session_ended(server: ZooKeeperServer, ledger: Ledger) -> None:
    """Nothing is claimed in a session that has ended."""
    refused = server.faults.refuse()
    server.faults.drop()
    with pytest.raises(ZooKeeperUnavailable, match="ZooKeeper at"):
        ledger.claim("e", 1)
    refused.end()


@pytest.mark.parametrize(
    "junk",
    [b"", b"null", b"[]", b"\xff", b'{"v": 2, "sent": 1}', b'{"v": 1}', b'{"v": 1, "sent": "soon"}', b"[" * 4000,
     b'{"v": 1, "sent": 1e999}', b'{"v": 1, "sent": NaN}', b'{"v": 1, "sent": -1}', b'{"v": 1, "sent": null}'],
)  # fmt: skip
def test_load__nonsense(server: ZooKeeperServer, lock: Lock, junk: bytes) -> None:
    """What makes no sense says nothing, and is written over."""
    ledger = Ledger(lock)
    write_sent(server, path_of(ledger, "e"), junk)
    ledger.load()
    assert ledger.last_sent("e") is None
    assert ledger.claim("e", 1)
    assert ledger.last_sent("e") is not None


def test_load__from_the_future(server: ZooKeeperServer, lock: Lock) -> None:
    """A time that no leader's clock can have shown is not believed, or the entry would never be sent again."""
    ledger = Ledger(lock)
    sent = time.time() + 2 * MAX_SKEW
    write_sent(server, path_of(ledger, "e"), json.dumps({"v": 1, "sent": sent}).encode())
    ledger.load()
    assert ledger.last_sent("e") is None


def test_load__refused(server: ZooKeeperServer, lock: Lock) -> None:
    """A ledger that may not be read is an error, and not an empty one."""
    ledger = Ledger(lock)
    write_sent(server, path_of(ledger, "e"), b"")
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=20)
    client.set_acls(path_of(ledger, "e"), [make_digest_acl("somebody", "else", all=True)])
    client.stop()
    client.close()
    with pytest.raises(ZkLockError, match="NoAuth"):
        ledger.load()
    with pytest.raises(ZkLockError, match="NoAuth"):
        ledger.claim("e", 1)


# The scheduler.


class Sends(Scheduler):
    """Keeps what is sent to itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sent: list[str | None] = []
        # How much had been sent each time that it stored.
        self.stored: list[int] = []
        super().__init__(*args, **options)

    def sync(self) -> None:
        self.stored.append(len(self.sent))

    def send_task(self, *args: Any, **_options: Any) -> None:
        self.sent.append(args[0])


class Failing(Sends):
    """Cannot store."""

    def close(self) -> None:
        raise OSError("the disk is full")


@pytest.fixture
def app(server: ZooKeeperServer, root: str, settings: Settings) -> Iterator[Celery]:
    """Give an app whose beats send to themselves, with one entry an hour."""
    settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "ROOT": root, "SESSION_TIMEOUT": SHORT, "CONNECT_TIMEOUT": 2}}
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.conf.update(
        zklock_beat_scheduler=f"{__name__}:Sends",
        beat_schedule={"hourly": {"task": "hourly", "schedule": HOUR}},
        beat_max_loop_interval=0.05,
    )
    yield app
    app.close()
    connections.reset()


MakeScheduler = Callable[[], LeaderScheduler]


@pytest.fixture
def make_scheduler(app: Celery) -> Iterator[MakeScheduler]:
    """Give what makes schedulers, as beats in one process."""
    made: list[LeaderScheduler] = []

    def make() -> LeaderScheduler:
        made.append(LeaderScheduler(app))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def inner(scheduler: LeaderScheduler) -> Any:
    """Tick until the scheduler leads, and give the one that sends."""

    def ticked() -> Any:
        assert scheduler.tick() == 0.0
        return scheduler._inner

    return wait_until(ticked, 10.0, "the lead")


def test_lead__nobody_before(make_scheduler: MakeScheduler) -> None:
    """Who leads for the first time sends what its own scheduler finds due, and knows the schedule."""
    scheduler = make_scheduler()
    assert scheduler.schedule == {}
    assert inner(scheduler).sent == []
    assert list(scheduler.schedule) == ["hourly"]


@pytest.mark.parametrize(("ago", "sends"), [(2 * HOUR, ["hourly"]), (HOUR / 2, [])])
def test_lead__after_another(
    server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler, ago: float, sends: list[str]
) -> None:
    """A scheduler that has stored nothing begins where the last leader has stopped."""
    sent = time.time() - ago
    page = f"{root}/celery-beat:unit/sent/hourly"
    write_sent(server, page, json.dumps({"v": 1, "sent": sent}).encode())
    scheduler = make_scheduler()
    led = inner(scheduler)
    scheduler.tick()
    assert led.sent == sends
    entry = led.schedule["hourly"]
    assert entry.is_due()[1] == pytest.approx(HOUR if sends else HOUR - ago, abs=60)


@pytest.mark.parametrize(("stored", "written"), [(5 * HOUR, 60.0), (60.0, 5 * HOUR)])
def test_lead__schedule_file(
    app: Celery, tmp_path: Path, server: ZooKeeperServer, root: str, stored: float, written: float
) -> None:
    """What another has sent since is not sent again, whatever the schedule file says; nor what that knows."""
    app.conf.zklock_beat_scheduler = "celery.beat:PersistentScheduler"
    now = time.time()
    file = PersistentScheduler(app, schedule_filename=str(tmp_path / "schedule"))
    file.schedule["hourly"].last_run_at = datetime.fromtimestamp(now - stored, timezone.utc)
    file.close()
    page = f"{root}/celery-beat:unit/sent/hourly"
    write_sent(server, page, json.dumps({"v": 1, "sent": now - written}).encode())
    scheduler = LeaderScheduler(app, schedule_filename=str(tmp_path / "schedule"))
    led = inner(scheduler)
    entry = led.schedule["hourly"]
    assert entry.last_run_at.timestamp() == pytest.approx(now - 60)
    assert not led.is_due(entry)[0]
    scheduler.close()


def test_lead__new_entry(server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler) -> None:
    """An entry that comes while we lead begins as its scheduler says, whatever was once sent by that name."""
    page = f"{root}/celery-beat:unit/sent/new"
    write_sent(server, page, json.dumps({"v": 1, "sent": 1.0}).encode())
    scheduler = make_scheduler()
    led = inner(scheduler)
    led.add(name="new", task="new", schedule=HOUR)
    scheduler.tick()
    assert list(led.schedule) == ["hourly", "new"]
    assert led.sent == []


def test_tick__claimed_by_another(app: Celery, make_scheduler: MakeScheduler) -> None:
    """A leader that does not know yet that it has lost the lead does not send what the next one has sent."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = inner(scheduler)
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "the first")
    other = Ledger(led.held.lock)
    other.load()
    count = len(led.sent)
    assert other.claim("often", 2)
    entry = led.schedule["often"]
    wait_until(lambda: entry.is_due()[0], 10.0, "due, as far as it knows")
    assert not led.is_due(entry)[0]
    assert led.ledger.last_sent("often") == other.last_sent("often")
    assert len(led.sent) == count
    # And goes on with the next.
    wait_until(lambda: scheduler.tick() or len(led.sent) > count, 10.0, "the next")


def test_tick__read_again(app: Celery, make_scheduler: MakeScheduler) -> None:
    """An entry that forgets its last run, as one from a database that keeps whole seconds, is not claimed again."""
    app.conf.beat_schedule = {
        "often": {"task": "often", "schedule": 0.1},
        "hourly": {"task": "hourly", "schedule": HOUR},
    }
    scheduler = make_scheduler()
    led = inner(scheduler)
    assert led.ledger.claim("hourly", 1)
    page = led.ledger._pages["hourly"]
    entry = led.schedule["hourly"]
    entry.last_run_at = datetime.fromtimestamp(1.0, timezone.utc)
    due, delay = led.is_due(entry)
    assert not due
    assert delay == pytest.approx(HOUR, abs=60)
    assert led.ledger._pages["hourly"] == page
    assert led._heap is None, "or it would stand before the others"
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "another")


def test_tick__broken_lock(app: Celery, server: ZooKeeperServer, make_scheduler: MakeScheduler) -> None:
    """A leader whose node was deleted claims nothing, although its session lives."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = inner(scheduler)
    entry = led.schedule["often"]
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=20)
    client.delete(led.held.node)
    client.stop()
    client.close()
    wait_until(lambda: led.held.lost and entry.is_due()[0], 10.0, "lost, and something due")
    assert not led.is_due(entry)[0]
    assert led.ledger.last_sent("often") is None
    assert inner(scheduler) is not led


def test_tick__stores(app: Celery, make_scheduler: MakeScheduler) -> None:
    """What is sent is stored at once; and beat's own loop stores from time to time, as without a leader."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.2}}
    scheduler = make_scheduler()
    led = inner(scheduler)
    assert led.stored == [0]
    wait_until(lambda: scheduler.tick() or len(led.sent) == 2, 10.0, "two")
    assert led.stored == [0, 1, 2]


def test_signals__acquired_and_contended(make_scheduler: MakeScheduler) -> None:
    """Those who listen hear of the lead as of any lock."""
    recorder = Recorder()
    recorder.connect()
    try:
        first, second = make_scheduler(), make_scheduler()
        inner(first)
        wait_until(lambda: second.tick() or "contended" in recorder.names, 10.0, "the wait")
        assert recorder.names == ["acquired", "contended"]
        assert recorder.facts("acquired")["key"] == "celery-beat:unit"
    finally:
        recorder.disconnect()


def test_tick__cannot_claim(app: Celery, server: ZooKeeperServer, make_scheduler: MakeScheduler) -> None:
    """What cannot be claimed is not sent."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = inner(scheduler)
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
        assert scheduler._inner is None
    assert len(led.sent) == count
    inner(scheduler)


def test_tick__asked_to_let_go(make_scheduler: MakeScheduler, server: ZooKeeperServer) -> None:
    """A leader that is asked to let go hands over to the next, and gets in line behind it."""
    first, second = make_scheduler(), make_scheduler()
    led = inner(first)
    second.tick()
    revocation.ask(led.held.lock.pool, led.held.node, "maintenance", timeout=5.0)
    wait_until(lambda: first.tick() or first._inner is None, 10.0, "the first stepped down")
    inner(second)
    first.tick()
    assert first._inner is None
    second.close()
    inner(first)


def test_lead__ledger_unreadable(
    server: ZooKeeperServer, root: str, make_scheduler: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """Who cannot read what was sent does not lead, says so once, and tries again."""
    page = f"{root}/celery-beat:unit/sent/hourly"
    write_sent(server, page, b"")
    client = KazooClient(hosts=server.hosts)
    client.start(timeout=20)
    before, _ = client.get_acls(page)
    client.set_acls(page, [make_acl("world", "anyone", admin=True)])
    scheduler = make_scheduler()
    wait_until(lambda: scheduler.tick() or "beat_cannot_stand" in caplog.text, 10.0, "the refusal")
    assert scheduler._inner is None
    client.set_acls(page, before)
    client.stop()
    client.close()
    inner(scheduler)


def test_close__cannot_store(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """The lead is given up also if the scheduler cannot store; closing again does nothing."""
    app.conf.zklock_beat_scheduler = f"{__name__}:Failing"
    first, second = LeaderScheduler(app), LeaderScheduler(app)
    inner(first)
    second.tick()
    first.close()
    assert "event=beat_not_stored" in caplog.text
    inner(second)
    first.close()
    second.close()


def test_configuration__names(app: Celery) -> None:
    """The lock's key and alias, and the scheduler that sends, are the configuration's; making one opens nothing."""
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
    """A signal handler that closes beat while it sends ends it, and leaves the send its connection."""
    app.conf.beat_schedule = {"often": {"task": "often", "schedule": 0.1}}
    scheduler = make_scheduler()
    led = inner(scheduler)

    def send_and_be_told(*_args: Any, **_options: Any) -> None:
        # What Celery's handler for SIGTERM does. Its exception is lost to another, from a `finally` of the send's.
        scheduler.close()
        led.sent.append("connected" if "connection" in vars(led) else "closed")
        raise ValueError("I/O operation on closed file")

    led.send_task = send_and_be_told
    wait_until(lambda: scheduler.tick() or led.sent, 10.0, "the send")
    assert led.sent == ["connected"]
    with pytest.raises(SystemExit):
        scheduler.tick()
    scheduler.close()
    assert scheduler._inner is None
    inner(make_scheduler())


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("zklock_beat_scheduler", "django_zklock.contrib.celery.beat:LeaderScheduler", ImproperlyConfigured),
        ("zklock_beat_scheduler", "celery.beat:Nobody", AttributeError),
        ("zklock_beat_using", "absent", ImproperlyConfigured),
    ],
)
def test_configuration__wrong(app: Celery, option: str, value: str, error: type[Exception]) -> None:
    """A mistake in the configuration ends beat when it starts, and not when it gets the lead."""
    app.conf[option] = value
    with pytest.raises(error):
        LeaderScheduler(app, lazy=True)
