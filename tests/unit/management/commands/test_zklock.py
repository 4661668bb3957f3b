"""The command as a whole: its exit codes on a command line and from code, and its answers to wrong words."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_zklock.management.commands.zklock import Command, UnsuccessfulError
from django_zklock.management.subcommands import show
from tests.support.command import Hold

pytest_plugins = ["tests.support.command_fixtures"]


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], r"there is no 'lst' \(did you mean list\?\): list, show, "),
        (["relese"], "there is no 'relese'.*: list, show, "),
        (["list", "--jsn"], r"unrecognized arguments: --jsn \(did you mean --json\?\)"),
        (["show", "k", "l"], "unrecognized arguments: l$"),
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
