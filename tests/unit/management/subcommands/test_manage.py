"""``zklock manage``: a command of Django under a lock."""

from __future__ import annotations

import contextlib
import os
import signal
from io import StringIO
from typing import Any

import pytest
from django.core.management import BaseCommand, CommandError, ManagementUtility

from django_zklock import LockLost, current_lock, zk_lock
from django_zklock.management.subcommands import exit_codes
from tests.toolbox.django.command import failure, run
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]


class Command(BaseCommand):
    """A command that does what a test says."""

    requires_system_checks = ()
    calls: list[tuple[Any, ...]]

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")
        parser.add_argument("--flag", action="store_true")

    def handle(self, *args: Any, words: list[str], flag: bool, **options: Any) -> None:
        held = current_lock()
        self.calls.append((words, flag, held and held.key))
        self.work()

    def work(self) -> None: ...


@pytest.fixture
def command(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> type[Command]:
    """Return a command named ``work``."""
    Command.calls = []
    fetch = ManagementUtility.fetch_command

    def fetched(utility: ManagementUtility, name: str) -> BaseCommand:
        return Command() if name == "work" else fetch(utility, name)

    monkeypatch.setattr(ManagementUtility, "fetch_command", fetched)
    return Command


def test_manage(command: type[Command], ensemble: Ensemble) -> None:
    """The command runs in this process, with its own arguments, and is the holder."""
    run("manage", "k", "--", "work", "--flag", "--", "a", "-b")
    assert command.calls == [(["a", "-b"], True, "k")]
    ensemble.wait_empty("k")


def test_manage__holder(command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others see the name of the command."""
    seen = []
    monkeypatch.setattr(command, "work", lambda self: seen.append(run("show", "k")))
    run("manage", "k", "--", "work")
    assert "command work" in seen[0]


def test_manage__waits(command: type[Command], other_client: OtherClient) -> None:
    """A taken lock is waited for, and before that the command names its holder."""
    other_client.take("k")
    out = StringIO()
    for options in (["--timeout", "0.1"], ["--on-conflict", "fail"]):
        error = failure("manage", "k", *options, "--", "work", out=out)
        assert error.returncode == exit_codes.CONFLICT
    assert out.getvalue().startswith("Waiting for lock k, held by label the other client")
    assert command.calls == []


def test_manage__command_fails(
    command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error and the exit code are those of the command, and the lock is free."""

    def fail(_self: Command) -> None:
        raise CommandError("no such thing", returncode=3)

    monkeypatch.setattr(command, "work", fail)
    run("manage", "k", "--", "work", status=3)
    assert "CommandError: no such thing" in capsys.readouterr().err
    ensemble.wait_empty("k")


def test_manage__lost(command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose lock is lost is interrupted."""

    def lose(_self: Command) -> None:
        ensemble.end_session()
        wait_until(lambda: False)

    monkeypatch.setattr(command, "work", lose)
    assert failure("manage", "k", "--", "work").returncode == exit_codes.LOST


def test_manage__lost_and_taken_again(
    command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command whose lock is lost cannot take it again by itself."""

    def lose(_self: Command) -> None:
        held = current_lock("k")
        assert held is not None
        ensemble.end_session()
        with contextlib.suppress(LockLost):
            wait_until(lambda: False)
        with pytest.raises(LockLost):
            zk_lock("k").acquire()

    monkeypatch.setattr(command, "work", lose)
    assert failure("manage", "k", "--", "work").returncode == exit_codes.LOST


@pytest.mark.parametrize("code", [0, 1])
def test_manage__lost_and_ended(
    code: int, command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one that makes another end of it, as Django's own commands do that wrap errors."""

    def lose(_self: Command) -> None:
        ensemble.end_session()
        try:
            wait_until(lambda: False)
        except LockLost as error:
            raise SystemExit(code) from error

    monkeypatch.setattr(command, "work", lose)
    assert failure("manage", "k", "--", "work").returncode == exit_codes.LOST


def test_manage__lost_another(command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a lock that the command has taken itself is an error of the command."""

    def lose(_self: Command) -> None:
        with zk_lock("other") as held:
            ensemble.delete(held)
            wait_until(lambda: held.lost)

    monkeypatch.setattr(command, "work", lose)
    with pytest.raises(LockLost, match="lock 'other' was lost"):
        run("manage", "k", "--", "work")
    ensemble.wait_empty("k")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_manage__signal(
    number: signal.Signals, command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that asks to end releases the lock, and the exit code is that of ``run``."""

    def be_ended(_self: Command) -> None:
        os.kill(os.getpid(), number)
        wait_until(lambda: False)

    monkeypatch.setattr(command, "work", be_ended)
    # The tests may run under `nohup`.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        run("manage", "k", "--", "work", status=128 + number)
        ensemble.wait_empty("k")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_manage__signal_while_waiting(command: type[Command], other_client: OtherClient, ensemble: Ensemble) -> None:
    """So does one that comes while the command waits for the lock: it leaves the queue."""
    other_client.take("k")

    def end() -> None:
        ensemble.wait_count("k", 2)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = Runner(end)
    run("manage", "k", "--", "work", status=143)
    ending.result(10)
    ensemble.wait_count("k", 1)
    assert command.calls == []


def test_manage__own_signals(command: type[Command], ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of the program, of the command and of ``nohup`` stays in force."""

    def handle(*_arguments: object) -> None: ...

    def install(_self: Command) -> None:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, handle)

    monkeypatch.setattr(command, "work", install)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run("manage", "k", "--", "work")
        assert signal.getsignal(signal.SIGTERM) is handle
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_manage__in_a_thread(command: type[Command], ensemble: Ensemble) -> None:
    """A thread, which cannot handle signals, may call it."""
    Runner(lambda: run("manage", "k", "--", "work")).result(20)
    assert command.calls == [([], False, "k")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["manage", "k"], "give the command of Django"),
        (["manage", "k", "--timeout", "1", "--on-conflict", "fail", "--", "work"], "--timeout has no meaning"),
        (["manage", "--using", "nowhere", "k", "--", "work"], "no alias 'nowhere'"),
        (["manage", "k", "--", "work", "--settings=other"], "--settings comes too late"),
        (["manage", "k", "--", "work", "--pythonpath", "/x"], "--pythonpath comes too late"),
    ],
)
def test_manage__wrong(arguments: list[str], message: str, command: type[Command]) -> None:
    """What cannot run is refused before the lock is taken."""
    error = failure(*arguments)
    assert error.returncode == exit_codes.COULD_NOT_RUN
    assert message in str(error)


def test_manage__options_of_another_program(command: type[Command], ensemble: Ensemble) -> None:
    """What stands behind another "--" is not Django's."""
    run("manage", "k", "--", "work", "--", "--settings=other")
    assert Command.calls == [(["--settings=other"], False, "k")]


def test_manage__unknown(command: type[Command], ensemble: Ensemble, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command has Django's message."""
    run("manage", "k", "--", "wrok", status=exit_codes.COULD_NOT_RUN)
    assert "Unknown command: 'wrok'" in capsys.readouterr().err
