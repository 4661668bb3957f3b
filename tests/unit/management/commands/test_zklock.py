"""The command as a whole: its exit codes on a command line and from code, and its answers to wrong words."""

from __future__ import annotations

import errno
import os
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_zklock import operations
from django_zklock.management.commands.zklock import Command, UnsuccessfulError
from django_zklock.management.subcommands import show
from django_zklock.zk.node_data import Work
from tests.toolbox.django.command import Hold, failure
from tests.unit.management.command_process import Process

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def exit_code(*words: str) -> object:
    """Return what the command line exits with."""
    with pytest.raises(SystemExit) as caught:
        Command(stdout=StringIO()).run_from_argv(["manage.py", "zklock", *words])
    return caught.value.code


@pytest.mark.parametrize("question", [["list", "no-such-*"], ["show", "k"], ["history", "k"]])
def test_call_command__nothing_is_there(zklock: str, question: list[str]) -> None:
    """Called from code, a question without a match returns; on a command line its exit code is 1."""
    out = StringIO()
    assert call_command("zklock", *question, stdout=out) is None
    assert out.getvalue()
    assert exit_code(*question) == 1


@pytest.mark.parametrize("action", ["revoke", "break"])
def test_call_command__nothing_is_done(zklock: str, action: str) -> None:
    """Called from code, an action that was not done is an ordinary error with the exit code."""
    with pytest.raises(UnsuccessfulError, match=f"zklock {action} has ended with 1; its output says why") as caught:
        call_command("zklock", action, "k", "--reason", "why", stdout=StringIO())
    assert caught.value.returncode == 1
    assert exit_code(action, "k", "--reason", "why") == 1


def test_interrupted(zklock: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the program with 130 and without a traceback; code that calls the command gets it itself."""

    def interrupt(*_arguments: object, **_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "run", interrupt)
    assert exit_code("show", "k") == 130
    assert capsys.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt):
        call_command("zklock", "show", "k")


class Full(StringIO):
    """A file on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_output__cannot_be_written(hold: Hold) -> None:
    """A full disk ends a question with 2 and a sentence; an action goes on without its output."""
    held = [hold("gpu", limit=2, reentrant=False) for _ in range(2)]
    error = failure("list", out=Full())
    assert error.returncode == 2
    expected = "standard output cannot be written: No space left on device; without that, zklock list would have ended"
    assert str(error) == f"{expected} with 0"
    assert str(failure("show", "free", out=Full())).endswith("zklock show would have ended with 1")
    assert failure("revoke", "gpu", "--reason", "deploy", out=Full()).returncode == 2
    assert [each.revoked is not None for each in operations.show_lock("gpu").holders] == [True, True]
    assert not any(each.lost for each in held)


@pytest.mark.program
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("redirect", "why"),
    [("", "No space left on device"), (">&-", "Bad file descriptor"), ("2>&1", ""), (">&- 2>&-", "")],
    ids=["full", "closed", "both full", "both closed"],
)
def test_output__of_a_program(hold: Hold, shared_hosts: str, redirect: str, why: str) -> None:
    """On a command line too there is one line and no traceback, also if the shell has closed standard output.

    The exit code is the same if the line cannot be written either.
    """
    hold("k")
    full = os.open("/dev/full", os.O_RDWR)
    try:
        status, errors = Process(shared_hosts, full, "list", redirect=redirect).end()
    finally:
        os.close(full)
    what = f"standard output cannot be written: {why}; without that, zklock list would have ended with 0"
    assert (status, errors) == (2, f"CommandError: {what}\n" if why else "")


def test_keywords(hold: Hold) -> None:
    """An option that code gives by keyword may have the notation of the command line; a wrong one is an error of it."""
    hold("k", Work(kind="task", name="bill"))
    out = StringIO()
    call_command("zklock", "list", older_than="1d", stdout=out)
    assert out.getvalue().startswith("No matching locks")
    with pytest.raises(UnsuccessfulError):
        call_command("zklock", "revoke", "k", reason="why", wait="0.1s", stdout=out)
    with pytest.raises(CommandError, match=r"^older_than must be a number of seconds, .* got 'soon'$") as caught:
        call_command("zklock", "list", older_than="soon")
    assert caught.value.returncode == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], r"there is no 'lst' \(did you mean list\?\): list, show, "),
        (["relese"], "there is no 'relese'.*: list, show, "),
        (["list", "--jsn"], r"unrecognized arguments: --jsn \(did you mean --json\?\)"),
        (["show", "k", "l"], "unrecognized arguments: l$"),
        (["revoke", "k", "--json"], "unrecognized arguments: --json; zklock revoke writes text alone"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    """A wrong word is answered with one that is like it."""
    with pytest.raises(CommandError, match=message) as caught:
        call_command("zklock", *words)
    # That of Django: its parser knows no exit codes.
    assert caught.value.returncode == 1


@pytest.mark.parametrize("words", [["list", "--jsn"], ["show", "k", "l"], ["list", "--limit", "0"]])
def test_wrong_words__usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On a command line the error shows the usage of the subcommand, and not that of all of them."""
    assert exit_code(*words) == 2
    assert capsys.readouterr().err.startswith(f"usage: manage.py zklock {words[0]} ")


def test_json(hold: Hold) -> None:
    """--json is the same as --format json."""
    hold("k")
    for question in (["list"], ["show", "k"]):
        both = [StringIO(), StringIO()]
        for out, options in zip(both, (["--json"], ["--format", "json"]), strict=True):
            call_command("zklock", *question, *options, stdout=out)
        short, long = (out.getvalue().partition('"age"')[0] for out in both)
        assert short == long != ""
