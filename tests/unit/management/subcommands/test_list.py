"""`zklock list` and `zklock show`; their tables as a whole are those of the documents, which have their own tests."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from kazoo.client import KazooClient

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.management.commands.zklock import Command
from django_zklock.management.subcommands import _output, arguments
from django_zklock.management.subcommands._output import table
from django_zklock.zk import node_data
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops import snapshots
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.pool import Pool
from tests.toolbox.django.command import BILL, NASTY, Hold, Join, Screen, Wait, failure, run
from tests.toolbox.locks.many_locks import hold_many
from tests.toolbox.network.port import free_port
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.any_server import packets_received
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.nocelery

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def test_list__empty(zklock: str) -> None:
    """An empty list is no error and names the root and the server."""
    out = run("list")
    assert out.startswith(f"No locks are in use under {zklock} at 127.0.0.1:")
    assert json.loads(run("list", "--format", "json")) == {"locks": [], "problems": []}


def test_list__json(hold: Hold, join: Join, zklock: str) -> None:
    """JSON has every lock with its queue, under the documented names."""
    held = hold("invoice:42", BILL)
    path = join(held, b"junk")
    (lock,) = json.loads(run("list", "--format", "json"))["locks"]
    first, second = lock.pop("places")
    assert lock == {
        "alias": "default",
        "key": "invoice:42",
        "path": f"{zklock}/invoice:42",
        "state": "held",
        "holders": 1,
        "waiters": 1,
        "foreign": [],
    }
    assert (first["position"], first["state"], first["kind"]) == (0, "held", "exclusive")
    assert first["token"] == held.token
    assert held.node.endswith("/" + first["node"])
    assert abs(first["since"] - time.time()) < scaled(60)
    assert 0 <= first["age"] < 30
    assert first["session"].startswith("0x")
    assert first["identity"]["pid"] == os.getpid()
    work = {"kind": "task", "name": "billing.bill", "id": "77", "worker": "", "child": None, "time_limit": None}
    assert first["identity"]["work"] == work | {"forgotten": False, "command": "", "arguments": ""}
    assert (second["position"], second["state"]) == (1, "waiting")
    assert second["identity"] is None
    assert path.endswith("/" + second["node"])


def test_show__task_of_a_worker(hold: Hold) -> None:
    """Below the queue are the lines that end the task of a holder; the child is shown, and not the main process."""
    hold("invoice:42", Work(kind="task", name="billing.bill", id="77", worker="celery@web1", child=93))
    out = run("show", "invoice:42")
    assert f"task billing.bill [77] (pid 93 on {os.uname().nodename}, worker celery@web1)" in out
    text, command, otherwise, kill = out.splitlines()[-4:]
    assert text == f"To end the task at position 0, and not its worker, main process {os.getpid()}:"
    assert command.endswith(" control -d celery@web1 terminate SIGTERM 77")
    (place,) = json.loads(run("show", "invoice:42", "--format", "json"))["places"]
    assert place["end_command"] == command.strip()
    assert otherwise == f"If that does not end it, on {os.uname().nodename}:"
    assert place["kill_command"] == kill.strip() == "kill -9 93"


def test_show__contenders_that_look_alike(join: Join) -> None:
    """Contenders of one process that look alike are told apart by their threads; others have no thread in their row."""
    for thread, name in (("MainThread", "pay"), ("Thread-7", "pay"), ("Thread-8", "refund")):
        identity = Identity(host="web1", pid=71, thread=thread, work=Work(kind="function", name=name))
        join("invoice:42", identity.encode())
    holders = [re.split("  +", place)[6] for place in run("show", "invoice:42").splitlines()[1:]]
    assert holders == [
        "function pay (pid 71 on web1), thread MainThread",
        "function pay (pid 71 on web1), thread Thread-7",
        "function refund (pid 71 on web1)",
    ]


def test_show__arguments(hold: Hold, join: Join) -> None:
    """Below the queue are the arguments of the task that holds the lock, as far as they are in the key."""
    bill = Work(kind="task", name="billing.bill", id="77", arguments="invoice_id=42, shop=\x1bmain")
    held = hold("invoice:42:main", bill)
    waiter = Identity(host="web1", pid=71, work=bill).encode()
    join(held, waiter)
    *_rows, last = run("show", "invoice:42:main").splitlines()
    assert last == "Position 0: called with invoice_id=42, shop=\ufffdmain"
    assert last not in run("list")


def test_show__worker_cannot_end_the_task(hold: Hold) -> None:
    """When the worker has forgotten the task, the line that kills its child stands alone."""
    work = Work(kind="task", name="billing.bill", id="77", worker="celery@web1", child=93, forgotten=True)
    hold("invoice:42", work)
    out = run("show", "invoice:42")
    host = os.uname().nodename
    assert out.splitlines()[-2:] == [
        f"The worker cannot end the task at position 0 any more. On {host}:",
        "  kill -9 93",
    ]
    assert "terminate" not in out


def test_show__waits_for_a_slot(kazoo_client: KazooClient, join: Join) -> None:
    """A task that was granted its lock and has no slot has a state of its own, in the list too."""
    work = Work(kind="task", name="billing.bill", id="77", worker="celery@web1", child=0)
    identity = Identity(host="web1", pid=71, work=work).encode()
    data = node_data.add_run(identity, child=0, granted=time.time() - 100, forgotten=False)
    # The second node of the queue: of the first it is known when it was granted.
    kazoo_client.delete(join("invoice:42"))
    join("invoice:42", data)
    join("invoice:42", identity)
    header, first, second, text, *_end = run("show", "invoice:42").splitlines()
    assert first.split()[:2] == ["0", "granted"]
    assert second.split()[:2] == ["1", "waiting"]
    assert text == "Position 0: granted, waits for a slot of its worker"
    assert "To free the lock before, break it: that interrupts nothing" in run("show", "invoice:42")
    # The server's clock may be another one, and no grant is before the node.
    assert [line[header.index("HELD") :].split("  ")[0] for line in (first, second)] == ["0 s", "-"]
    assert run("list").splitlines()[1].split()[:2] == ["invoice:42", "granted"]
    (lock,) = json.loads(run("list", "--format", "json"))["locks"]
    assert (lock["state"], [place["state"] for place in lock["places"]]) == ("held", ["granted", "waiting"])


def test_show__grant_is_not_known(kazoo_client: KazooClient, join: Join) -> None:
    """The time of a hold is an upper bound where it is not known when the lock was granted."""
    kazoo_client.delete(join("invoice:42"))
    join("invoice:42")
    header, first = run("show", "invoice:42").splitlines()
    assert first[header.index("HELD") :].startswith("<= ")
    header, first = run("list").splitlines()
    assert first[header.index("HELD") :].startswith("<= ")


def test_show__several_keys(hold: Hold, wait_for: Wait) -> None:
    """Where a contender for several keys is first, nothing tells whether it holds them or waits for another one."""
    hold("bank:b")
    wait_for("bank:a", "bank:b")
    header, first, text = run("show", "bank:a").splitlines()
    assert first.split()[:2] == ["0", "held"]
    assert first[header.index("HELD") :].startswith("<= ")
    assert text == "Position 0: takes 2 keys at once, and may still wait for another one"
    header, listed, _other = run("list", "bank:").splitlines()
    assert listed[header.index("HELD") :].startswith("<= ")
    (place,) = json.loads(run("show", "bank:a", "--json"))["places"]
    assert (place["state"], place["granted"], place["keys"]) == ("held", None, 2)
    # Where it waits, that is plain; the holder there takes one key, and was the first.
    header, first, second = run("show", "bank:b").splitlines()
    assert [line.split()[1] for line in (first, second)] == ["held", "waiting"]
    assert not first[header.index("HELD") :].startswith("<= ")
    held, waiter = json.loads(run("show", "bank:b", "--json"))["places"]
    assert (held["granted"], held["keys"], waiter["keys"]) == (held["since"], None, 2)


def test_show__json(hold: Hold) -> None:
    """`show` writes the same object as `list`, and what is sent."""
    hold("invoice:42")
    shown = json.loads(run("show", "invoice:42", "--format", "json"))
    (listed,) = json.loads(run("list", "--format", "json"))["locks"]
    for facts in (shown, listed):
        facts["places"][0].pop("age")
    assert shown == listed | {"sent": []}


def test_show__free(zklock: str) -> None:
    """A free lock is exit code 1."""
    assert run("show", "unused", status=1) == "Lock unused is free: it has no holder and no waiter.\n"
    facts = json.loads(run("show", "unused", "--format", "json", status=1))
    assert (facts["state"], facts["places"]) == ("free", [])


def test_show__similar_keys(hold: Hold, kazoo_client: KazooClient) -> None:
    """An unused key may be a typing error, so similar keys are shown; no others, and not for a key in use."""
    hold("invoice:42")
    hold("invoice:421")
    hold("catalogue")
    for typed in ("Invoice:42", "invioce:42", "INVOICE:421"):
        lines = run("show", typed, status=1).splitlines()
        assert lines[0] == f"Lock {typed} is free: it has no holder and no waiter."
        assert lines[1].startswith("Similar keys with a queue: ")
        assert ("invoice:421" if "421" in typed else "invoice:42") == lines[1].partition(": ")[2].split(", ")[0]
        assert "catalogue" not in lines[1]
    assert "Similar" not in run("show", "nothing-like-it", status=1)
    assert "Similar" not in run("show", "invoice:42")
    assert "Similar keys with a queue: catalogue\n" in run("break", "Catalogue", "--yes", "--reason", "x", status=1)


def test_list__record_of_beat(zklock: str, hold: Hold, kazoo_client: KazooClient) -> None:
    """What a beat has sent is no contender: its lock is free when no beat runs, and no node is of an unknown recipe."""
    kazoo_client.create(f"{zklock}/celery-beat:shop/sent", makepath=True)
    assert run("list").startswith("No locks are in use ")
    assert run("show", "celery-beat:shop", status=1).startswith("Lock celery-beat:shop is free")
    hold("celery-beat:shop")
    assert "unknown" not in run("show", "celery-beat:shop") + run("list")


def test_show__foreign_nodes(zklock: str, kazoo_client: KazooClient) -> None:
    """Nodes of unknown recipes are shown, and do not count as holders."""
    kazoo_client.create(f"{zklock}/strange/who\x9bknows".replace("\x9b", "-"), ephemeral=True, makepath=True)
    assert run("show", "strange", status=1) == "Nodes of unknown recipes: who-knows\n"
    assert "strange  unknown" in run("list")


@pytest.mark.parametrize("output", ["table", "json"])
def test_show__hostile_data(hold: Hold, output: str) -> None:
    """Data of other clients cannot clear the screen, forge rows, or reverse the text."""
    hold(NASTY, Work(kind=NASTY, name=NASTY, id=NASTY))
    for text in (run("show", NASTY, "--format", output), run("list", "--format", output)):
        assert text.replace("\n", "").isprintable()
        assert "gpj.exe" in text
    if output == "table":
        assert len(run("list").splitlines()) == 2
        assert "\\x1b[2J\\u202egpj.exe\\r\\nfake row" in run("list")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--using", "reports"], "no alias 'reports'"),
        (["show", ""], "must not be empty"),
        (["show", "k" * 1025], "must not be longer than 1024 bytes"),
    ],
)
def test_wrong_arguments__exit_code_2(zklock: str, arguments: list[str], message: str) -> None:
    """Wrong arguments are an error of one line, with exit code 2."""
    error = failure(*arguments)
    assert error.returncode == 2
    assert message in str(error)


def test_wrong_setting__exit_code_2(settings: Settings) -> None:
    """The command skips the system checks, so it reports a wrong setting itself."""
    settings.ZKLOCK = {"default": {"HOSTS": 5}}
    error = failure("list")
    assert error.returncode == 2
    assert 'ZKLOCK["default"]["HOSTS"]' in str(error)


@pytest.mark.parametrize("arguments", [[], ["show"], ["list", "--format", "xml"], ["list", "--using", "x", "--all"]])
def test_usage__refused(arguments: list[str]) -> None:
    """Wrong command lines are refused."""
    with pytest.raises(CommandError):
        call_command("zklock", *arguments)


@pytest.mark.parametrize("subcommand", [["list"], ["show", "k"], ["run", "k"]])
def test_options_of_django__after_the_subcommand(hold: Hold, subcommand: list[str]) -> None:
    """Django's own options may stand before and after the subcommand."""
    own = ["--settings", "config.settings", "--pythonpath", ".", "--traceback", "--no-color", "-v", "0"]
    rest = ["--", "true"] if subcommand[0] == "run" else []
    if not rest:
        hold("k")
    parser = Command().create_parser("manage.py", "zklock")
    for line in ([*own, *subcommand, *rest], [*subcommand, *own, *rest]):
        parsed = parser.parse_args(line)
        found = parsed.settings, parsed.traceback, parsed.no_color, parsed.verbosity
        assert found == ("config.settings", True, True, 0)
        assert parsed.force_color is False
        assert parsed.command == rest[1:]


def test_list__colours(hold: Hold) -> None:
    """States are coloured with --force-color, and not in a pipe; the option may stand after the subcommand."""
    hold("k")
    for words in (["--force-color", "list"], ["list", "--force-color"]):
        assert "\x1b[32;1mheld \x1b[0m" in run(*words)
    assert "\x1b[" not in run("list") + run("list", "--no-color", out=Screen())


@pytest.mark.parametrize("key", ["-5", "--all"])
def test_key__with_a_dash(hold: Hold, key: str) -> None:
    """A key like an option stands after "--"."""
    held = hold(key)
    assert str(held.token) in run("show", "--", key)
    run("revoke", "--reason", "maintenance", "--", key)
    run("break", "--yes", "--reason", "it hangs", "--", key)
    assert f"{key}  " not in run("list")


def test_run__forgotten_dashes() -> None:
    """A command without "--" before it is refused with the way out."""
    with pytest.raises(CommandError, match='unrecognized arguments: echo hi; the command to run stands after "--"'):
        call_command("zklock", "run", "key", "echo", "hi")


def test_list__narrow_terminal(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of a task is shortened before the process and the host of the holder are cut."""
    monkeypatch.setenv("COLUMNS", "300")
    hold("k", Work(kind="task", name="billing.bill", id="5b7e3c52-8f0a-4c1d-9a5e-1f2d3c4b5a69"))
    wide = run("list", out=Screen())
    assert "[5b7e3c52-8f0a-4c1d-9a5e-1f2d3c4b5a69] (pid " in wide
    width = max(map(len, re.sub(r"\x1b\[[\d;]*m", "", wide).splitlines()))
    monkeypatch.setenv("COLUMNS", str(width - 10))
    narrow = run("list", out=Screen())
    assert f"task billing.bill [5b7e3c52…] (pid {os.getpid()} on {os.uname().nodename})\n" in narrow


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_list__eighty_columns(hold: Hold, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    """A row fits into eighty columns, whatever the key and the holder are."""
    monkeypatch.setenv("COLUMNS", "80")
    hold("k" * 300, Work(kind="task", name="n" * 200, id="5b7e3c52-8f0a-4c1d-9a5e-1f2d3c4b5a69"))
    for line in re.sub(r"\x1b\[[\d;]*m", "", run("list", *options, out=Screen())).splitlines():
        assert len(line) <= 80, line


class Narrow(Screen):
    """A terminal with few characters."""

    encoding = "ascii"


def test_list__terminal(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal long texts are cut to its width, and characters that it cannot show are escaped."""
    monkeypatch.setenv("COLUMNS", "100")
    hold("k" * 300, Work(kind="task", name="n" * 200))
    hold("schlüssel")
    out = Narrow()
    call_command("zklock", "list", stdout=out)
    header, cut, umlaut = out.getvalue().splitlines()
    assert "schl\\xfcssel" in umlaut
    assert cut.startswith("kkkk")
    assert "\\u2026" in cut
    assert len(cut.replace("\\u2026", "…")) == 100
    assert header.startswith("KEY  ")


def test_list__filters(hold: Hold, join: Join) -> None:
    """Each filter works, and the exit code is 1 if no lock is left."""
    hold("invoice:42", BILL)
    held = hold("catalogue", mode="read")
    join(held, label="__WRIT__")
    key = "invoice:" + "é" * 300 + ":end"
    hold(key)
    everything = ["catalogue", "invoice:42", key]
    for options, found in {
        (): everything,
        ("INVOICE",): everything[1:],
        ("*:end",): [key],
        ("--state", "contended"): ["catalogue"],
        ("--kind", "write"): ["catalogue"],
        ("--task", "billing"): ["invoice:42"],
        ("--host", os.uname().nodename): everything,
        ("--older-than", "0.001"): everything,
        ("--sort", "waiters", "--reverse"): ["catalogue", "invoice:42", key],
        ("--sort", "token"): ["invoice:42", "catalogue", key],
        ("--sort", "token", "--limit", "1"): ["invoice:42"],
        ("--limit", "2"): everything[:2],
    }.items():
        locks = json.loads(run("list", *options, "--format", "json"))["locks"]
        assert [lock["key"] for lock in locks] == found, options
    for nothing in (("--state", "revoked"), ("--older-than", "1d"), ("nothing",), ("--host", "nowhere")):
        assert json.loads(run("list", *nothing, "--format", "json", status=1)) == {"locks": [], "problems": []}
        assert run("list", *nothing, status=1).startswith("No matching locks are in use under ")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--older-than", "soon", "must be a number of seconds, not negative, or a time like 15m, 2h or 1d"),
        ("--older-than", "-1", "must be a number of seconds"),
        ("--older-than", "inf", "must be a finite time"),
        ("--older-than", "m", "must be a number of seconds"),
        ("--limit", "0", "must be a positive integer"),
        ("--state", "lost", "invalid choice"),
    ],
)
def test_list__wrong_values(option: str, value: str, message: str) -> None:
    """A wrong value is refused, and the error describes the right ones."""
    with pytest.raises(CommandError, match=message):
        call_command("zklock", "list", f"{option}={value}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)]
)
def test_seconds(text: str, seconds: float) -> None:
    """A time has a unit, or is in seconds."""
    assert arguments.seconds(text) == seconds


def test_list__every_alias(hold: Hold, settings: Settings, zklock: str) -> None:
    """With --all there is a column for the alias; an unreachable ensemble is an error and does not hide the others."""
    reachable = settings.ZKLOCK["default"]
    settings.ZKLOCK = {"default": reachable, "reports": {**reachable, "ROOT": f"{zklock}-reports"}}
    hold("a")
    hold("b", using="reports")
    header, first, second = run("list", "--all").splitlines()
    assert header.split()[:2] == ["ALIAS", "KEY"]
    assert (first.split()[:2], second.split()[:2]) == (["default", "a"], ["reports", "b"])
    aliases = [lock["alias"] for lock in json.loads(run("list", "--all", "--format", "json"))["locks"]]
    assert aliases == ["default", "reports"]
    absent = {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.3}
    settings.ZKLOCK = {"absent": absent, "default": reachable}
    hold("a")
    out = StringIO()
    error = failure("list", "--all", out=out)
    assert error.returncode == 2
    assert "ZooKeeper at 127.0.0.1:" in str(error)
    assert out.getvalue().splitlines()[1].startswith("a  ")


def test_list__problem_in_json(hold: Hold, settings: Settings) -> None:
    """JSON says that ZooKeeper cannot be read: no locks in it must not mean that no lock is held."""
    reachable = settings.ZKLOCK["default"]
    absent = {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.3}
    settings.ZKLOCK = {"default": absent, "reports": reachable}
    hold("a", using="reports")
    out = StringIO()
    error = failure("list", "--all", "--format", "json", out=out)
    answer = json.loads(out.getvalue())
    assert [lock["key"] for lock in answer["locks"]] == ["a"]
    assert answer["problems"] == [{"alias": "default", "problem": str(error)}]


def test_list__every_alias_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --all the ensembles are read at the same time."""
    settings.ZKLOCK = {alias: {"HOSTS": f"127.0.0.1:{free_port()}"} for alias in ("default", "reports", "archive")}
    all_reading = threading.Barrier(3)

    def list_names(_pool: Pool, *, timeout: float) -> list[str]:
        all_reading.wait(timeout)
        return []

    monkeypatch.setattr("django_zklock.zk.ops.snapshots.list_names", list_names)
    assert len(run("list", "--all").splitlines()) == 3


class Written(StringIO):
    """Standard output that counts how many queues were read when each row was written."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads
        self.read_before: list[int] = []

    def write(self, text: str) -> int:
        self.read_before += [len(self.reads)] * text.count("\n")
        return super().write(text)


@pytest.mark.parametrize("output", ["table", "json"])
def test_list__as_it_is_read(hold: Hold, reads: list[str], output: str) -> None:
    """Rows are written when their locks have been read, and not when all have."""
    for number in range(6):
        hold(f"k{number}")
    out = Written(reads)
    run("list", "--format", output, out=out)
    before_first_row = out.read_before[1]
    assert 0 < before_first_row <= 2
    assert len(reads) == 6
    if output == "json":
        assert [lock["key"] for lock in json.loads(out.getvalue())["locks"]] == [f"k{number}" for number in range(6)]
    else:
        assert len(out.getvalue().splitlines()) == 7


@pytest.mark.parametrize(("options", "first", "count"), [((), "k0", 1), (("--reverse",), "k5", 1), (("k4",), "k4", 1)])
def test_list__reads_no_more_than_its_limit(
    hold: Hold, reads: list[str], options: tuple[str, ...], first: str, count: int
) -> None:
    """In the order of keys, only as many queues are read as are shown."""
    for number in range(6):
        hold(f"k{number}")
    assert run("list", "--limit", "1", *options).splitlines()[1].startswith(first)
    assert len(reads) == count


@pytest.mark.parametrize("output", ["table", "json"])
def test_list__zookeeper_stops_answering(
    hold: Hold, reads: list[str], monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """What was read before ZooKeeper stopped answering is shown, and the error says how much that was."""
    for number in range(6):
        hold(f"k{number}")
    list_queues = snapshots.list_queues

    def fail(pool: Pool, names: list[str], *, timeout: float) -> list[LockSnapshot]:
        if "k4" in names:
            raise ZooKeeperUnavailable("no answer")
        return list_queues(pool, names, timeout=timeout)

    monkeypatch.setattr(snapshots, "list_queues", fail)
    out = StringIO()
    error = failure("list", "--format", output, out=out)
    assert (str(error), error.returncode) == ("no answer; 4 of 6 queues had been read", 2)
    if output == "json":
        answer = json.loads(out.getvalue())
        assert [len(answer["locks"]), answer["problems"][0]["problem"]] == [4, str(error)]
    else:
        assert len(out.getvalue().splitlines()) == 5


def test_list__progress(hold: Hold, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If it takes its time, a terminal is told how far it is, on standard error; a file is not."""
    monkeypatch.setattr(_output, "FIRST_NOTE", 0.0)
    monkeypatch.setattr(_output, "NOTE_INTERVAL", 0.0)
    for number in range(4):
        hold(f"k{number}")
    screen, file, out = Screen(), StringIO(), StringIO()
    for errors in (screen, file):
        call_command("zklock", "list", "--sort", "urgency", stdout=out, stderr=errors)
    assert "\r2 of 4 queues read; Ctrl-C ends\x1b[K" in screen.getvalue()
    # The line is removed.
    assert screen.getvalue().endswith("\r\x1b[K")
    assert file.getvalue() == ""
    assert "\r" not in out.getvalue()


def test_list__match(hold: Hold) -> None:
    """The pattern may have the name that it has for `watch`; two patterns are one too many."""
    for key in ("invoice:1", "account:1"):
        hold(key)
    assert run("list", "--match", "inv") == run("list", "inv")
    assert "--match" in str(failure("list", "inv", "--match", "acc"))


@pytest.mark.zookeeper
@pytest.mark.slow
def test_list__requests(settings: Settings) -> None:
    """Ten thousand locks take one request for the names and two for each 128 locks: their queues and their data."""
    with ZooKeeper() as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": 60, "CONNECT_TIMEOUT": 60}}
        client = KazooClient(hosts=server.hosts, timeout=60)
        client.start(timeout=20)
        hold_many(client, "/django_zklock", 10_000)
        run("list", "nothing", status=1)
        begin = packets_received(server)
        assert len(run("list").splitlines()) == 10_001
        whole = packets_received(server)
        assert len(run("list", "invoice:0000?", "--limit", "5").splitlines()) == 6
        part = packets_received(server)
        # This includes the request that reads the counter, and pings, more of them on a busy machine.
        pings = 30
        assert 1 + 2 * math.ceil(10_000 / 128) <= whole - begin - 1 <= 4 + 2 * math.ceil(10_000 / 128) + pings
        assert 3 <= part - whole - 1 <= 6 + pings
        client.stop()
        client.close()


def test_show__readers_and_writers(join: Join) -> None:
    """Of many blockers the first ranges are shown; the list shows one holder and the number of the others."""
    for number in range(14):
        kind = "__READ__" if number < 3 or number % 2 else "__WRIT__"
        join("catalogue", label=kind)
    places = [re.split("  +", place) for place in run("show", "catalogue").splitlines()[1:]]
    assert [place[1] for place in places] == ["held"] * 4 + ["waiting"] * 10
    assert [place[5] for place in places[:7]] == ["-", "-", "-", "-", "0-3", "4", "0-5"]
    assert places[-1][5] == "4, 6, 8, …"
    assert "unknown client" in run("list")
    assert " and 3 more\n" in run("list")


def test_list__hostile_tree(zklock: str, kazoo_client: KazooClient, join: Join) -> None:
    """Megabytes of data, invalid UTF-8, wrong types and unusual names are shown without harm."""
    data = {
        "a%FF": b"\xff\xfe",
        "%1B[2J": b'{"v":1,"host":["a"],"pid":{"b":1}}',
        "forged": b'{"v":1,"host":"h\\u202e","pid":true,"work":[1],"limit":"many","revoke":{"a":1}}',
        "forged too": b'{"v":1,"host":"\\ud800","pid":7,"work":{"kind":1,"name":null},"revoke":"\\u001b[31m"}',
        "huge": b"x" * 1_000_000,
        "huge too": b'{"v":1,"host":"' + b"h" * 900_000 + b'","pid":1}',
        "\N{ARABIC LETTER ALEF}": b"[" * 100_000,
    }
    for name, content in data.items():
        join(name, content)
    results = [kazoo_client.create_async(f"{zklock}/foreign/\u05d0{number}", makepath=True) for number in range(2000)]
    for result in results:
        result.get(timeout=30)
    text = run("list") + run("list", "--state", "revoked") + run("list", "--format", "json")
    for key in ("a%FF", "huge", "foreign", "forged too", "%1B[2J"):
        text += run("show", key, status=None) + run("show", key, "--format", "json", status=None)
    assert text.replace("\n", "").isprintable()
    assert len(run("list").splitlines()) == len(data) + 2
    shown = run("show", "foreign", status=1)
    assert shown.endswith(" and 1990 more\n")
    assert len(shown) < 200


# The table.


def columns_of(*rows: tuple[str, ...], width: int | None = None) -> list[str]:
    """Return the lines of a table whose first column is elastic."""
    return table(("KEY", "STATE"), rows, width=width, styles={"held": lambda text: f"<{text}>"}).splitlines()


def test_table__wide_characters_stay_in_columns() -> None:
    """Characters that take two columns of a terminal, or none, are measured right."""
    assert columns_of(("鍵鍵", "free"), ("e\u0301te", "free")) == ["KEY   STATE", "鍵鍵  free", "e\u0301te   free"]
    assert columns_of(("鍵" * 20, "free"), width=19)[1] == "鍵" * 5 + "…   free"


def test_table__long_text_does_not_pad_the_others() -> None:
    """In a pipe nothing is cut, and one long text does not make every row as long as itself."""
    header, long, short = columns_of(("k" * 41, "free"), ("account:17", "held"))
    assert long == "k" * 41 + "  free"
    assert [header, short] == ["KEY         STATE", "account:17  <held >"]


def test_table__terminal_too_narrow() -> None:
    """On a terminal that is too narrow columns keep a minimum width; the holder, which is wrapped then, is whole."""
    assert columns_of(("k" * 30, "free"), width=10)[1] == "k" * 11 + "…  free"
    rows = [("k" * 30, "n" * 30)]
    header = ("KEY", "HOLDER")
    assert table(header, rows, width=25, styles={}).splitlines()[1] == "k" * 11 + "…  " + "n" * 30
    assert table(header, rows, width=40, styles={}).splitlines()[1] == "k" * 18 + "…  " + "n" * 18 + "…"


def test_table__colours() -> None:
    """Colours do not change the position of columns, and apply to coloured columns only."""
    assert columns_of(("held", "held"), ("k", "free")) == ["KEY   STATE", "held  <held >", "k     free"]
