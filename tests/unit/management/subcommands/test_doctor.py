"""`zklock doctor`: the findings as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from django_zklock import doctor
from django_zklock.doctor import Finding
from tests.toolbox.django.command import Screen, run

OK = Finding(id="a.fine", level="ok", subject="", found="as it should be")
KNOWN = Finding(id="b.known", level="info", subject="zk1:2181", found="worth knowing")
SLOW = Finding(id="c.slow", level="warning", subject="zk2:2181", found="slow " * 30, advice="look at it " * 20)
AWAY = Finding(id="d.away", level="error", subject="zk3:2181", found="away", advice="start it")


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Return the list of the findings that the doctor will return."""
    found: list[Finding] = []

    def run_doctor(alias: str) -> Iterator[Finding]:
        assert alias == "default"
        yield from found

    monkeypatch.setattr(doctor, "run", run_doctor)
    return found


@pytest.mark.parametrize(("found", "status"), [([], 0), ([OK, KNOWN], 0), ([OK, SLOW], 1), ([AWAY, OK], 1)])
def test_doctor__status(findings: list[Finding], found: Sequence[Finding], status: int) -> None:
    """Warnings and errors are exit code 1."""
    findings += found
    run("doctor", status=status)
    run("doctor", "--format", "json", status=status)


def test_doctor__terminal(findings: list[Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal long texts are wrapped; with --force-color levels are coloured."""
    monkeypatch.setenv("COLUMNS", "80")
    findings.append(SLOW)
    lines = run("doctor", status=1, out=Screen()).splitlines()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 80
    assert [line[:8] for line in lines].count("warning ") == 1
    assert run("--force-color", "doctor", status=1).startswith("\x1b[33;1mwarning\x1b[0m  c.slow (zk2:2181)")


def test_doctor__json(findings: list[Finding]) -> None:
    """JSON has every field."""
    findings += [OK, AWAY]
    assert json.loads(run("doctor", "--format", "json", status=1)) == {
        "alias": "default",
        "findings": [
            {"id": "a.fine", "level": "ok", "subject": "", "found": "as it should be", "advice": ""},
            {"id": "d.away", "level": "error", "subject": "zk3:2181", "found": "away", "advice": "start it"},
        ],
    }


def test_doctor__written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finding is written before the next examination starts."""
    out = Screen()

    def run_doctor(_alias: str) -> Iterator[Finding]:
        yield OK
        assert "a.fine" in out.getvalue()
        yield KNOWN

    monkeypatch.setattr(doctor, "run", run_doctor)
    assert "b.known" in run("doctor", out=out)


def test_doctor__real(zklock: str) -> None:
    """On a running server there is no error."""
    text = run("doctor", status=None)
    assert "default" in text
    assert "error" not in [line.split()[0] for line in text.splitlines()]


def test_doctor__no_such_alias() -> None:
    """Settings that cannot be read are a finding too."""
    text = run("doctor", "--using", "reports", status=1)
    assert text.startswith("error    ")
    assert "reports" in text
