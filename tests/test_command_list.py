"""`zklock list` and `zklock show`, on a real ZooKeeper."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from kazoo.client import KazooClient
from services.port import free_port

from django_zklock.locks import zk_lock
from django_zklock.management import rendering
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.survey import Line, Place

if TYPE_CHECKING:
    from pytest_django import Settings

GUID = "01234567-89ab-cdef-0123-456789abcdef"
NASTY = "\x1b[2J\u202egpj.exe\r\nfake row"

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def hold(zklock: str) -> Iterator[Callable[..., Held]]:
    """Give a function that takes a lock until the end of the test."""
    taken: list[Held] = []

    def take(key: str, work: Work | None = None) -> Held:
        taken.append(zk_lock(key, work=lambda: work).acquire(5))
        return taken[-1]

    yield take
    for held in taken:
        held.release()


def run(*arguments: str, status: int = 0) -> str:
    """Run ``zklock`` and give what it writes to stdout; its exit status must be ``status``."""
    out = StringIO()
    ended: str | int | None = 0
    try:
        call_command("zklock", *arguments, stdout=out)
    except SystemExit as end:
        ended = end.code
    assert ended == status
    return out.getvalue()


def failure(*arguments: str) -> CommandError:
    """Run ``zklock``, which must fail, and give the error."""
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    return caught.value


def test_list__table(hold: Callable[..., Held], outsider: KazooClient) -> None:
    """One row for each lock, by key, in columns."""
    bill = Work(kind="task", name="billing.bill", id="77")
    held = hold("invoice:42", bill)
    hold("account:17")
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    header, account, invoice = run("list").splitlines()
    assert header.split() == ["KEY", "STATE", "KIND", "AGE", "WAITERS", "TOKEN", "HOLDER"]
    assert account.split()[:3] == ["account:17", "held", "exclusive"]
    assert invoice.split()[:2] == ["invoice:42", "held"]
    assert invoice.endswith(f"task billing.bill [77] (pid {os.getpid()} on {os.uname().nodename})")
    for name, value in (("STATE", "held"), ("WAITERS", "1"), ("TOKEN", str(held.token))):
        assert invoice[header.index(name) :].startswith(value)


def test_list__empty(zklock: str) -> None:
    """No locks is no error, and says where was looked."""
    out = run("list")
    assert out.startswith(f"No locks are in use under {zklock} at 127.0.0.1:")
    assert json.loads(run("list", "--format", "json")) == {"locks": []}


def test_list__json(hold: Callable[..., Held], outsider: KazooClient, zklock: str) -> None:
    """JSON has every lock with its whole line, under the names that the reference promises."""
    held = hold("invoice:42", Work(kind="task", name="billing.bill", id="77"))
    path = outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", b"junk", ephemeral=True, sequence=True)
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
    assert abs(first["since"] - time.time()) < 30
    assert 0 <= first["age"] < 30
    assert first["session"].startswith("0x")
    assert first["identity"]["pid"] == os.getpid()
    assert first["identity"]["work"] == {"kind": "task", "name": "billing.bill", "id": "77"}
    assert (second["position"], second["state"]) == (1, "waiting")
    assert second["identity"] is None
    assert path.endswith("/" + second["node"])


def test_show__table(hold: Callable[..., Held], outsider: KazooClient) -> None:
    """The whole line, first come first, with who is in each place."""
    held = hold("invoice:42", Work(kind="command", name="nightly"))
    for _number in range(2):
        outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    header, *places = run("show", "invoice:42").splitlines()
    assert header.split() == ["POSITION", "STATE", "KIND", "SINCE", "(UTC)", "AGE", "TOKEN", "HOLDER", "NODE"]
    assert [place.split()[:3] for place in places] == [
        ["0", "held", "exclusive"],
        ["1", "waiting", "exclusive"],
        ["2", "waiting", "exclusive"],
    ]
    assert f"command nightly (pid {os.getpid()} on " in places[0]
    assert f" {held.token} " in places[0]
    assert places[0].endswith(held.node.rpartition("/")[2])
    session, _password = outsider.client_id
    assert f"unknown client, session 0x{session:x}" in places[1]


def test_show__json(hold: Callable[..., Held]) -> None:
    """The same object as in the list."""
    hold("invoice:42")
    shown = json.loads(run("show", "invoice:42", "--format", "json"))
    (listed,) = json.loads(run("list", "--format", "json"))["locks"]
    for facts in (shown, listed):
        facts["places"][0].pop("age")
    assert shown == listed


def test_show__free(zklock: str) -> None:
    """A lock that nobody holds is a finding, told by the exit status too."""
    assert run("show", "nobody", status=1) == "Lock nobody is free: nobody holds it and nobody waits for it.\n"
    facts = json.loads(run("show", "nobody", "--format", "json", status=1))
    assert (facts["state"], facts["places"]) == ("free", [])


def test_show__foreign_nodes(zklock: str, outsider: KazooClient) -> None:
    """Nodes of an unknown recipe hold nothing that we know of, but are not hidden."""
    outsider.create(f"{zklock}/strange/who\x9bknows".replace("\x9b", "-"), ephemeral=True, makepath=True)
    assert run("show", "strange", status=1) == "Nodes of no recipe known here: who-knows\n"
    assert "strange  unknown" in run("list")


@pytest.mark.parametrize("output", ["table", "json"])
def test_show__hostile_data(hold: Callable[..., Held], output: str) -> None:
    """What others wrote cannot clear the screen, forge rows, or turn the text around."""
    hold(NASTY, Work(kind=NASTY, name=NASTY, id=NASTY))
    for text in (run("show", NASTY, "--format", output), run("list", "--format", output)):
        assert text.replace("\n", "").isprintable()
        assert "gpj.exe" in text
    if output == "table":
        assert len(run("list").splitlines()) == 2
        assert "\\x1b[2J\\u202egpj.exe\\r\\nfake row" in run("list")


@pytest.mark.parametrize("action", [["list"], ["show", "key"]])
def test_unreachable__one_line(settings: Settings, action: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """A ZooKeeper that is not there is one line, within the connect timeout, and status 2."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    began = time.monotonic()
    error = failure(*action)
    assert time.monotonic() - began < 4
    assert error.returncode == 2
    assert "ZooKeeper at 127.0.0.1:" in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--using", "reports"], "no alias 'reports'"),
        (["show", ""], "must not be empty"),
        (["show", "k" * 1025], "must not be longer than 1024 bytes"),
        (["list", "--", "true"], 'takes nothing after "--"'),
    ],
)
def test_wrong_arguments__status_2(zklock: str, arguments: list[str], message: str) -> None:
    """What cannot be done is said in one line, with status 2."""
    error = failure(*arguments)
    assert error.returncode == 2
    assert message in str(error)


def test_wrong_setting__status_2(settings: Settings) -> None:
    """The command does without system checks, so it reports a wrong setting itself."""
    settings.ZKLOCK = {"default": {"HOSTS": 5}}
    error = failure("list")
    assert error.returncode == 2
    assert 'ZKLOCK["default"]["HOSTS"]' in str(error)


@pytest.mark.parametrize("arguments", [[], ["break"], ["show"], ["list", "--format", "xml"]])
def test_usage__refused(arguments: list[str]) -> None:
    """Nonsense on the command line is refused."""
    with pytest.raises(CommandError):
        call_command("zklock", *arguments)


class Narrow(StringIO):
    """A terminal of few signs."""

    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def test_list__terminal(hold: Callable[..., Held], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal long texts are cut to its width, and signs that it does not have are spelled out."""
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


def line(key: str, **values: Any) -> Line:
    return Line(key=key, path=f"/django_zklock/{key}", **values)


def place(position: int, *, held: bool) -> Place:
    return Place(
        node=f"lock-{position:010}", path="", kind="read", sequence=position, position=position, held=held,
        token=7, session_id=1, since=0.0, identity=None,
    )  # fmt: skip


def test_table__wide_signs_stay_in_columns() -> None:
    """Signs that take two columns of a terminal, and those that take none, are counted so."""
    table = rendering.lines_as_table([line("鍵鍵", foreign=("x",)), line("e\u0301te", foreign=("x",))], width=None)
    header, wide, combining = table.splitlines()
    assert wide.startswith("鍵鍵  unknown")
    assert combining.startswith("e\u0301te   unknown")
    assert header.startswith("KEY   STATE")


def test_table__long_text_does_not_pad_the_others() -> None:
    """In a pipe nothing is cut, and one monster does not make every row as long as itself."""
    table = rendering.lines_as_table([line("k" * 1000, foreign=("x",)), line("a", foreign=("x",))], width=None)
    _header, monster, short = table.splitlines()
    assert monster.startswith("k" * 1000 + "  unknown")
    assert len(short) < 200


def test_table__many_holders() -> None:
    """Readers share a lock; the first is named and the rest counted."""
    shared = line("catalogue", places=tuple(place(number, held=True) for number in range(3)))
    assert "unknown client, session 0x1 and 2 more" in rendering.lines_as_table([shared], width=None)


def test_table__nobody_holds_yet() -> None:
    """Between two holders there may be none."""
    table = rendering.lines_as_table([line("key", places=(place(0, held=False),))], width=None)
    assert table.splitlines()[1].split() == ["key", "waiting", "read", "-", "1", "-", "-"]


def test_table__terminal_too_narrow() -> None:
    """A terminal narrower than the least that a row needs gets that least."""
    table = rendering.lines_as_table([line("k" * 30, foreign=("x",))], width=10)
    assert table.splitlines()[1].startswith("k" * 11 + "…  unknown")
