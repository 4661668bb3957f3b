"""Words for people."""

from __future__ import annotations

import pytest

from django_zklock.zk import formatting
from django_zklock.zk.wire import options


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.9, "0 s"),
        (3.2, "3 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (90000, "1 d 1 h"),
        (8640000, "100 d"),
    ],
)
def test_age__two_units_at_most(seconds: float, text: str) -> None:
    """Ages are short and never negative."""
    assert formatting.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("invoice:42 ü 鍵 🔒", "invoice:42 ü 鍵 🔒"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\x00", "a\\nb\\tc\\x00"),
        ("\u202eexe.gpj", "\\u202eexe.gpj"),
        ("\u2066\u200b\ufeff\u2028", "\\u2066\\u200b\\ufeff\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_visible__nothing_acts_or_hides(text: str, shown: str) -> None:
    """What a terminal acts upon, what cannot be seen and what turns the text around is spelled out."""
    assert formatting.escape_controls(text) == shown


@pytest.mark.parametrize(
    ("hosts", "local"),
    [
        ("localhost", True),
        ("localhost:2181", True),
        ("127.0.0.1:2181/app", True),
        ("127.0.0.1:2181, 127.0.0.1:2182,[::1]:2183", True),
        ("127.0.0.1:2181,zk1:2181", False),
        ("localhost.example.org:2181", False),
        ("zk1:2181/localhost", False),
    ],
)
def test_local(hosts: str, local: bool) -> None:
    """Only for servers on this machine is the development server an answer."""
    advice = formatting.advise("no connection to ZooKeeper: Connection refused", hosts)
    assert ("devserver" in advice) is local


def test_silence() -> None:
    """The last refusal is told, whether there is a connection or not."""
    error = TimeoutError("busy")
    silence = formatting.format_silence
    assert silence("zk1:1", 2, connected=True, refusal=error) == f"ZooKeeper at zk1:1 has refused for 2.0 s: {error!r}"
    assert silence("zk1:1", 2, connected=True) == "no answer from ZooKeeper at zk1:1 within 2.0 s"
    assert silence("zk1:1", 2, connected=False) == "no connection to ZooKeeper at zk1:1 within 2.0 s"
    last = silence("zk1:1", 2, connected=False, refusal=error)
    assert last == f"no connection to ZooKeeper at zk1:1 within 2.0 s, whose last answer was {error!r}"


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        (f"no connection to ZooKeeper at zk1:1 ({options.NOT_RESOLVED}: zk1: no answer)", "does DNS answer this host"),
        (f"no connection to ZooKeeper at zk1:1 ({options.AT_A_REQUEST})", "`manage.py zklock doctor` examines it"),
        (f"ZooKeeper at zk1:1: {options.AUTH_REFUSED}", "`manage.py zklock doctor` examines it"),
        (
            "no connection to ZooKeeper at zk1:1 (socket connection error: Too many open files)",
            "its limits of open files",
        ),
    ],
)
def test_advice(facts: str, advice: str) -> None:
    """The advice is about the fact, and does not ask again what the fact has asked."""
    assert advice in formatting.advise(facts, "zk1:1")
    assert "reachable" not in formatting.advise(facts, "zk1:1")
