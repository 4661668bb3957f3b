"""The Python of the documents: every block runs, and its functions do what the page says."""

from __future__ import annotations

import asyncio
import enum
import json
import logging.config
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from billing.models import Account
from django.db import models, transaction
from django.http import HttpRequest
from django.test.utils import isolate_apps

from django_zklock import (
    LockConflict,
    LockInTransaction,
    LockTimeout,
    StaleToken,
    ZooKeeperUnavailable,
    checks,
    conf,
    current_lock,
    signals,
    zk_lock,
    zk_locked,
)
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from tests.project.doc_blocks import ROOT, Block, execute, runs
from tests.toolbox.django.layer import Ensemble, OtherClient, Recorder
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

Blocks = list[Block]


@pytest.fixture
def kind_of_server() -> str:
    """Return the server without Java: these tests are about the pages."""
    return "testserver"


@pytest.fixture
def names(ensemble: Ensemble) -> dict[str, Any]:
    """Return the names that the pages take for granted; every alias is on the test server."""
    return {
        "asyncio": asyncio,
        "models": models,
        "os": os,
        "time": time,
        "transaction": transaction,
        "current_lock": current_lock,
        "zk_lock": zk_lock,
        "zk_locked": zk_locked,
    }


def use(value: dict[str, dict[str, Any]], settings: Settings) -> None:
    """Set ``ZKLOCK`` and fail unless each alias can be used."""
    settings.ZKLOCK = value
    for alias in value:
        conf.options(alias)


def acquired(recorder: Recorder) -> list[dict[str, Any]]:
    """Return what the signal says of each lock that was acquired."""
    return [facts for name, facts, _thread in recorder.seen if name == "acquired"]


def python(program: str, hosts: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with the settings of the test project and this server."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'testproject'}",
        "ZOOKEEPER_HOSTS": hosts,
    }
    arguments = [sys.executable, "-c", program]
    return subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=scaled(60), check=False
    )


@pytest.mark.django_db(transaction=True)
@runs("docs/explanation/guarantees.md", language="python")
def test_guarantees(blocks: Blocks, names: dict[str, Any]) -> None:
    """The first function commits after the release of its lock, of which it is warned, and the second one before it."""
    held: list[bool] = []
    names["change"] = lambda _account: transaction.on_commit(lambda: held.append(current_lock() is not None))
    wrong, right = blocks
    with pytest.warns(LockInTransaction):
        execute([wrong], names)["pay"](7)
    execute([right], names)["pay"](7)
    assert held == [False, True]


@runs("docs/howto/async.md", language="python")
def test_async(blocks: Blocks, names: dict[str, Any], other_client: OtherClient) -> None:
    """The coroutines take their locks; the wrong one waits for itself."""
    written: list[int] = []
    names = execute(blocks, names | {"write": written.append})

    async def wait_for_itself() -> None:
        await asyncio.wait_for(names["wrong"](), 0.5)

    asyncio.run(names["bill"](42))
    asyncio.run(names["charge"](42))
    assert asyncio.run(names["charge_or_not"](42)) is None
    other_client.take("invoice:42")
    assert asyncio.run(names["charge_or_not"](42)) == "busy"
    other_client.release("invoice:42")
    asyncio.run(names["export"](42))
    asyncio.run(names["export_in_pool"](43))
    assert written == [42, 43]
    with pytest.raises(TimeoutError):
        asyncio.run(wait_for_itself())


@pytest.mark.celery
@runs("docs/howto/beat.md", language="python")
def test_beat(blocks: Blocks) -> None:
    """The settings name a scheduler of ours, and configuration that the reference lists."""
    from celery.utils.imports import symbol_by_name

    from django_zklock.contrib.celery.beat import LeaderScheduler

    names = execute(blocks, {})
    assert symbol_by_name(names["CELERY_BEAT_SCHEDULER"]) is LeaderScheduler
    assert {name for name in names if name.startswith("CELERY_ZKLOCK")} == {"CELERY_ZKLOCK_BEAT_SCHEDULER"}
    page = (ROOT / "docs/reference/celery.md").read_text(encoding="utf-8")
    assert "| `zklock_beat_scheduler` |" in page


@pytest.mark.celery
@runs("docs/howto/celery.md", language="python")
def test_celery(blocks: Blocks, names: dict[str, Any], other_client: OtherClient) -> None:
    """The tasks run under their locks, and a conflict ends as the page says."""
    from celery import shared_task

    tasks = execute(blocks, {"shared_task": shared_task, **names})
    (shown,) = (eval(block.text) for block in blocks if block.text.startswith("{"))
    assert tasks["settle"](17) is None
    assert tasks["load"]("csv") is None
    assert tasks["send_report"]("monday") is None
    other_client.take("import:csv")
    assert tasks["load"]("csv").startswith("import:csv is busy: label the other client (pid ")
    other_client.take("account:17")
    with pytest.raises(LockConflict):
        tasks["deposit"](17, 1)
    other_client.take("invoice:42")
    with pytest.raises(LockConflict):
        tasks["bill"](42)

    @zk_locked("invoice:{invoice_id}", on_conflict="skip")
    def skip(invoice_id: int) -> Any:
        return invoice_id

    result: Any = skip(42)  # type: ignore[no-untyped-call]
    assert [*result] == [*shown]
    assert all(result[name] == shown[name] for name in ("zklock", "key", "reason"))
    other_client.release_all()


@runs("docs/howto/commands.md", language="python")
def test_commands(blocks: Blocks, names: dict[str, Any], ensemble: Ensemble, other_client: OtherClient) -> None:
    """The commands run under their locks, SIGTERM becomes an ordinary end, and ends what waits."""
    plain, with_option, at_the_end, stopping = blocks
    assert execute([plain], names)["Command"]().handle() is None
    assert execute([with_option], names)["Command"]().handle(source="csv") is None
    before = signal.getsignal(signal.SIGTERM)
    try:
        execute([at_the_end], names)
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        turns: list[None] = []
        work = execute([stopping], {"import_next": lambda: turns.append(None)})["work"]
        waiter = Runner(work)
        wait_until(lambda: turns)
        other_client.take("import")
        ensemble.wait_count("import", 2)
        signal.raise_signal(signal.SIGTERM)
        waiter.result()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    ensemble.wait_count("import", 1)


@runs("docs/howto/forking-servers.md", language="python")
def test_forking_servers(blocks: Blocks, testserver: ZooKeeperServer, observer: Any) -> None:
    """The child closes its sessions, so that the lock that it holds is free before the session times out."""
    (block,) = blocks
    program = f"""
import os, django
django.setup()
from django_zklock import zk_lock

def work():
    kept.append(zk_lock("left-by-a-child").acquire(timeout=10))

kept = []
{block.text}
os.waitpid(pid, 0)
assert zk_lock("left-by-a-child").try_acquire() is not None
"""
    ended = python(program, testserver.hosts)
    assert (ended.returncode, ended.stderr) == (0, "")


@runs("docs/howto/install.md", language="python")
def test_install(
    blocks: Blocks, names: dict[str, Any], settings: Settings, testserver: ZooKeeperServer, recorder: Recorder
) -> None:
    """The settings can be used, the lock is one of the second alias, and kazoo logs only warnings."""
    first, aliases, lock, log = blocks
    use(execute([first], {})["ZKLOCK"], settings)
    use(execute([aliases], {})["ZKLOCK"], settings)
    settings.ZKLOCK["reports"]["HOSTS"] = testserver.hosts
    execute([lock], names)
    assert [(facts["key"], facts["alias"]) for facts in acquired(recorder)] == [("nightly", "reports")]
    kazoo = logging.getLogger("django_zklock.kazoo")
    level = kazoo.level
    try:
        logging.config.dictConfig(execute([log], {})["LOGGING"])
        assert kazoo.level == logging.WARNING
    finally:
        kazoo.setLevel(level)


@runs("docs/howto/interoperate.md", language="python")
def test_interoperate(blocks: Blocks, testserver: ZooKeeperServer, settings: Settings) -> None:
    """The path is the one of the page, and kazoo's lock, told of our names, keeps us out and is kept out."""
    settings.ZKLOCK = {"default": {"HOSTS": testserver.hosts, "SESSION_TIMEOUT": scaled(6)}}
    path, kazoo = blocks
    assert execute([path], {})["path"] == "/django_zklock/invoice:42"
    names = execute([kazoo], {}, hosts=testserver.hosts)
    try:
        with names["lock"]:
            assert zk_lock("invoice:42").try_acquire() is None
        with zk_lock("invoice:42"):
            assert not names["lock"].acquire(blocking=False)
    finally:
        names["client"].stop()
        names["client"].close()


@runs("docs/howto/kinds-of-locks.md", language="python")
def test_kinds_of_locks(blocks: Blocks, names: dict[str, Any]) -> None:
    """Each kind is granted; the pairs of keys have a token each."""
    fences: list[int] = []
    indexed: list[int] = []
    values = {
        "payer": 1,
        "payee": 2,
        "parts": [1, 2],
        "index": indexed.append,
        "move": lambda *, fence: fences.append(fence),
    }
    names = execute(blocks, names | values)
    assert names["render"]("scene") is None
    assert names["transfer"](1, 2) is None
    assert len(fences) == 1
    assert indexed == [1, 2]


@pytest.mark.celery
@pytest.mark.django_db
@runs("docs/howto/lost-locks.md", language="python")
def test_lost_locks(blocks: Blocks, names: dict[str, Any]) -> None:
    """A lost lock ends the loop, the receiver stops the program, and a stale token writes nothing."""
    from celery import shared_task

    loop, task, receiver, model, sql, orm = blocks
    written: list[int] = []
    stopped: list[str] = []
    names |= {
        "batches": [3, 4],
        "shared_task": shared_task,
        "write": written.append,
        "subprocess_of": lambda key: SimpleNamespace(terminate=lambda: stopped.append(key)),
    }
    execute([loop], names)
    names["batches"] = lambda _day: [5]
    execute([task], names)["export"]("monday")
    assert written == [3, 4, 5]

    execute([receiver], names)
    signals.lost.send_robust(object, key="k", held=None, reason="a test")
    assert stopped == ["k"]

    account = Account.objects.create(name="Ada")
    with isolate_apps("billing"):
        names |= execute([model], names, module="billing.fenced")
        (later,) = (field for field in names["Account"]._meta.get_fields() if field.name == "fence")
        assert isinstance(later, models.BigIntegerField)
        set_balance = execute([sql], names)["set_balance"]
        set_balance(account.pk, 500)
        row = names["Account"].objects.get(pk=account.pk)
        assert (row.balance, row.fence > 0) == (500, True)
        names |= {"account_id": account.pk, "balance": 600}
        assert execute([orm], names | {"token": row.fence + 1})["updated"] == 1
        assert execute([orm], names | {"token": row.fence})["updated"] == 0
        names["Account"].objects.update(fence=2**62)
        with pytest.raises(RuntimeError, match="a later holder has written"):
            set_balance(account.pk, 700)


@pytest.mark.django_db(transaction=True)
@runs("docs/howto/database.md", language="python")
def test_database(blocks: Blocks, names: dict[str, Any]) -> None:
    """The lock outlives the commit, and late writes are refused."""
    atomic, stack, until_commit, setting, model, fenced, claim = blocks
    account = Account.objects.create(name="Ada", balance=100)
    names |= {"Account": Account, "app": SimpleNamespace(task=lambda function: function)}
    with pytest.warns(LockInTransaction), transaction.atomic():
        execute([stack], names)["settle"](account.pk)
    Account.objects.update(balance=100)
    execute([stack], names)["settle"](account.pk)
    assert Account.objects.get().balance == 0
    Account.objects.update(balance=100)
    execute([atomic], names)["deposit"](account.pk, 5)
    with transaction.atomic():
        execute([until_commit], names)["withdraw"](account.pk, 15)
        assert current_lock(f"account:{account.pk}")
    assert current_lock() is None
    assert Account.objects.get().balance == 90
    names["Account"] = Account
    assert conf._read("", execute([setting], names)["ZKLOCK"]["default"], conf._ALIAS)["in_transaction"] == "error"
    with isolate_apps("billing"):
        shown = execute([model], {}, module="billing.fenced")["Account"]
        assert [field.name for field in shown._meta.fields if field.name in {"fence", "balance"}] == [
            "fence",
            "balance",
        ]
    names["Account"] = Account
    execute([fenced], names)["rename"](account.pk, "Barbara")
    names["add_interest"](account.pk)
    account.refresh_from_db()
    assert (account.name, account.fence > 0) == ("Barbara", True)
    Account.objects.update(fence=2**55)
    with pytest.raises(StaleToken):
        names["rename"](account.pk, "Grace")
    with pytest.raises(StaleToken):
        names["add_interest"](account.pk)
    Account.objects.update(fence=0, balance=0)
    execute([claim], names)["close"](account.pk)
    assert not Account.objects.exists()


class OtherLock:
    """A stand-in for the lock of another package: a context manager and a decorator that count."""

    taken: ClassVar[list[str]] = []

    def __init__(self, *arguments: Any, **_options: Any) -> None:
        self.name = str(arguments[-1])

    def __enter__(self) -> None:
        self.taken.append(self.name)

    def __exit__(self, *_raised: object) -> None:
        pass

    def __call__(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            with self:
                return function(*arguments)

        return call


@pytest.mark.celery
@runs("docs/howto/migrate.md", language="python")
def test_migrate(
    blocks: Blocks,
    names: dict[str, Any],
    other_client: OtherClient,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While both locks are taken, ours is taken inside of the other one; after that it is the only one."""
    celery = pytest.importorskip("celery")
    written: list[Any] = []

    class OtherTask(celery.Task):  # type: ignore[misc,name-defined]
        abstract = True

    packages = {
        "celery_once": SimpleNamespace(QueueOnce=OtherTask),
        "celery_singleton": SimpleNamespace(Singleton=OtherTask),
        "pglock": SimpleNamespace(advisory=OtherLock, Skip=None),
        "redis_lock": SimpleNamespace(Lock=OtherLock),
    }
    for name, module in packages.items():
        monkeypatch.setitem(sys.modules, name, module)
    names |= {
        "charge": lambda invoice_id: written.append((invoice_id, current_lock("invoice:42") is not None)),
        "redis": SimpleNamespace(lock=OtherLock),
        "shared_task": celery.shared_task,
        "write": lambda day: written.append((day, current_lock(f"export:{day}") is not None)),
    }
    functions = {
        "bill": (42, "invoice:42"),
        "export": ("monday", "export:monday"),
        "sync": (7, "shop.sync:7"),
        "report": ("monday", "shop.report:monday"),
        "nightly": (None, "nightly"),
    }
    timer, *blocks, old_and_new, new = blocks
    acquire = execute([timer], {})["acquire"]
    released = acquire("ttl", 0.01)
    wait_until(lambda: released.released)
    acquire("ttl", 60).release()

    Status = enum.Enum("Status", {"PAID": "paid"}, type=str)  # noqa: N806 - a class
    for block, value in ((old_and_new, Status.PAID), (old_and_new, "paid"), (new, Status.PAID), (new, "paid")):
        execute([block], {"Status": Status, **names})["close_orders"](value)
    keys = [facts["held"].keys for facts in acquired(recorder) if facts["key"].startswith("orders")]
    assert keys == [("orders:Status.PAID", "orders:paid")] * 2 + [("orders:paid",)] * 2

    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    for (name, (argument, key)), (both, after) in zip(functions.items(), pairs, strict=True):
        arguments = [] if argument is None else [argument]
        taken = len(OtherLock.taken)
        execute([both], names)[name](*arguments)
        assert len(OtherLock.taken) == taken + (name in {"bill", "export", "nightly"})
        taken = len(OtherLock.taken)
        execute([after], names)[name](*arguments)
        assert len(OtherLock.taken) == taken
        if name in {"sync", "report", "nightly"}:
            other_client.take(key)
        if name in {"report", "nightly"}:
            assert names[name](*arguments)["zklock"] == "skipped"
    assert written == [(42, True), (42, True), ("monday", True), ("monday", True)]


@pytest.mark.celery
@runs("docs/howto/metrics.md", language="python")
def test_metrics(blocks: Blocks, testserver: ZooKeeperServer, tmp_path: Path) -> None:
    """The project of the page exports what its locks did, by their templates."""
    pytest.importorskip("opentelemetry.sdk")
    app, locks, gunicorn, metrics = blocks
    shop = tmp_path / "shop"
    shop.mkdir()
    for block in (app, metrics):
        (shop / block.text.split("/")[1].split()[0]).write_text(block.text, encoding="utf-8")
    ended = python(
        f"""
import django; django.setup()
from types import SimpleNamespace
from django_zklock import zk_lock, zk_locked
import shop.apps
shop.apps.ShopConfig("shop", shop).ready()
{gunicorn.text}
post_fork(None, None)
invoice = SimpleNamespace(pk=42)
{locks.text}
settle(17)
from shop.metrics import stop
stop()
""",
        testserver.hosts,
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    exported = json.loads(ended.stdout)
    text = json.dumps(exported)
    for part in ("zklock.acquisitions", "invoice:{invoice_id}", "account:{shard}", "shop"):
        assert f'"{part}"' in text


@runs("docs/howto/traces.md", language="python")
def test_traces(blocks: Blocks, ensemble: Ensemble, names: dict[str, Any]) -> None:
    """The app traces its locks; an expected conflict is no event of Sentry's, and its span has the wait."""
    tracing = pytest.importorskip("django_zklock.contrib.opentelemetry")
    app, filters, receives = blocks
    execute([app], names)["ShopConfig"].ready(None)
    assert signals.refused.has_listeners(Lock)
    tracing.uninstrument_traces()
    assert not signals.refused.has_listeners(Lock)
    before_send = execute([filters], names)["before_send"]
    for error, is_event in ((LockTimeout("taken"), False), (LockConflict("taken"), False), (OSError("gone"), True)):
        assert (before_send({}, {"exc_info": (type(error), error, None)}) is not None) == is_event
    assert before_send({}, {"log_record": None}) == {}
    facts: dict[str, Any] = {}
    span = SimpleNamespace(set_data=facts.__setitem__)
    names["sentry_sdk"] = SimpleNamespace(get_current_span=lambda: span)
    tag_wait = execute([receives], names)["tag_wait"]
    with zk_lock("k"):
        pass
    signals.acquired.disconnect(tag_wait)
    assert facts["zklock.key"] == "k"
    assert facts["zklock.waited"] > 0


@runs("docs/howto/secure-zookeeper.md", language="python")
def test_secure_zookeeper(blocks: Blocks, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings can be used, and the hash in the ACL is the one that kazoo makes of user and password."""
    monkeypatch.setenv("ZK_PASSWORD", "secret")
    credentials, acl, digest, tls, sasl = blocks
    for block in (credentials, tls, sasl):
        use(execute([block], {"os": os})["ZKLOCK"], settings)
    entries = eval(f"{{{acl.text}}}")["ACL"]
    use({"default": {"HOSTS": "zk1:2181", "ACL": entries}}, settings)
    *statements, expression = digest.text.strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(statements), names)
    assert entries[0] == f"digest:{eval(expression, names)}:cdrwa"


@runs("docs/howto/several-ensembles.md", language="python")
def test_several_ensembles(blocks: Blocks, names: dict[str, Any], ensemble: Ensemble, settings: Settings) -> None:
    """The function spreads keys over both ensembles, for decorated functions and blocks, and both locks are taken."""
    default = settings.ZKLOCK["default"]
    settings.ZKLOCK = {alias: default | {"ROOT": f"{ensemble.root}/{alias}"} for alias in ("old", "zk-a", "zk-b")}
    spread, both = blocks
    names = execute([spread], names | {"invoice_id": 7})
    by_key = names["by_key"]
    assert {by_key(f"invoice:{number}") for number in range(20)} == {"zk-a", "zk-b"}
    names["send_invoice"](7)
    execute([both], names | {"key": "invoice:7", "old": "old"})
    roots = [f"{ensemble.root}/{alias}" for alias in ("old", by_key("invoice:7"))]
    assert all(ensemble.observer.client.exists(f"{root}/invoice:7") for root in roots)


@runs("docs/reference/api.md", language="python")
def test_api(blocks: Blocks, names: dict[str, Any]) -> None:
    """The block holds its lock, and the script finds no old import."""
    found = execute(blocks, names)
    assert found["held"].key == "invoice:42"
    assert found["end_old_imports"]() is None


@pytest.mark.django_db(transaction=True)
@runs("docs/howto/views.md", language="python")
def test_views(blocks: Blocks, names: dict[str, Any], other_client: OtherClient) -> None:
    """Each view answers under its lock, and with 409 if the lock is busy; the lock outlives the commit."""
    charged: list[tuple[int, bool]] = []

    def charge(invoice_id: int) -> None:
        charged.append((invoice_id, current_lock() is not None))
        if transaction.get_connection().in_atomic_block:
            transaction.on_commit(lambda: charged.append((0, current_lock() is not None)))

    async def charge_async(invoice_id: int) -> None:
        charge_locked.append((invoice_id, current_lock() is not None))

    class Response(SimpleNamespace):
        def __init__(self, data: Any, status: int = 200) -> None:
            super().__init__(data=data, status_code=status)

    charge_locked: list[tuple[int, bool]] = []
    names |= {
        "charge": charge,
        "charge_async": charge_async,
        # What Django REST framework has, as far as the page uses it.
        "Response": Response,
        "ViewSet": object,
        "action": lambda **_options: lambda method: method,
        "exception_handler": lambda _exception, _context: None,
        "rows_of": lambda day: [f"{day} {bool(current_lock(f'export:{day}'))}"],
    }
    names = execute(blocks, names)
    request = object()
    assert names["pay"](request, 1).status_code == 200
    assert names["refund"](request, 2).status_code == 200
    assert names["InvoiceViewSet"]().pay(request, "4").status_code == 200
    assert charged == [(1, True), (-2, True), (4, True)]
    charged.clear()
    assert names["pay_and_store"](request, 3).status_code == 200
    assert charged == [(3, True), (0, True)]
    assert asyncio.run(names["pay_async"](request, 5)).status_code == 200
    assert charge_locked == [(5, True)]
    response = names["export"](request, "monday")
    assert names["export"](HttpRequest(), "monday").status_code == 409
    assert list(response) == [b"monday True"]
    charged.clear()
    assert names["pay_all"](None, request, [SimpleNamespace(pk=6)]) is None
    assert charged == [(6, True)]
    assert names["pay_all"].short_description == "Pay the chosen invoices"

    for number in (1, 2, 5):
        other_client.take(f"invoice:{number}")
    assert names["pay"](request, 1).status_code == 409
    assert names["refund"](request, 2).status_code == 409
    assert asyncio.run(names["pay_async"](request, 5)).status_code == 409
    assert names["handle"](LockTimeout("busy"), {}).status_code == 409
    assert names["handle"](ZooKeeperUnavailable("away"), {}).status_code == 503
    assert names["handle"](ValueError(), {}) is None
    other_client.release_all()


@runs("docs/reference/checks.md", language="python")
def test_checks(blocks: Blocks, names: dict[str, Any], recorder: Recorder) -> None:
    """The receiver is called under its lock, and no check complains."""
    from django.core.signals import setting_changed

    reload = execute(blocks, names)["reload"]
    try:
        assert checks.check_registrations() == []
        setting_changed.send(object, setting="DEBUG", value=True, enter=True)
    finally:
        setting_changed.disconnect(reload)
    assert [facts["key"] for facts in acquired(recorder)] == ["settings:DEBUG"]


@pytest.mark.usefixtures("ensemble")
@runs("docs/reference/doctor.md", language="python")
def test_doctor(blocks: Blocks, capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding is printed."""
    execute(blocks, {})
    assert "settings.readable" in capsys.readouterr().out


@runs("docs/reference/settings.md", language="python")
def test_settings(blocks: Blocks, settings: Settings) -> None:
    """The setting can be used."""
    use(execute(blocks, {})["ZKLOCK"], settings)


@runs("docs/reference/signals.md", language="python")
def test_signals(blocks: Blocks, names: dict[str, Any], other_client: OtherClient) -> None:
    """The receiver is told of a call that is skipped."""
    counted: list[dict[str, str]] = []
    names["metrics"] = SimpleNamespace(increment=lambda _name, **facts: counted.append(facts))
    names = execute(blocks, names)
    try:
        other_client.take("k")
        zk_locked("k", on_conflict="skip")(lambda: None)()
    finally:
        signals.skipped.disconnect(names["count"])
    assert [fact["reason"] for fact in counted] == ["conflict"]
