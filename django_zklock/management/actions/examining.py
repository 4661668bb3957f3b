"""``zklock doctor``: what ails the locks of an ensemble."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django_zklock import doctor
from django_zklock.doctor import Finding
from django_zklock.management import arguments, rendering
from django_zklock.management.statuses import FINDING, FINE
from django_zklock.management.terminal import Terminal

HELP = "connect, look at everything that locks depend on, and say what to do"

BAD = frozenset({"warning", "error"})
# The longest level and a gap.
INDENT = " " * (max(map(len, doctor.LEVELS)) + 2)


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_alias(parser)
    arguments.add_format(parser)


def run(terminal: Terminal, *, using: str, format: str, **_options: Any) -> int:  # noqa: A002 - the option's name
    findings = []
    for finding in doctor.examine(using):
        findings.append(finding)
        if format == "table":
            # As it becomes known: what is away takes its time.
            terminal.write(_text(finding, terminal))
    if format == "json":
        terminal.write(rendering.as_json({"alias": using, "findings": [asdict(finding) for finding in findings]}))
    return FINDING if any(finding.level in BAD for finding in findings) else FINE


def _text(finding: Finding, terminal: Terminal) -> str:
    subject = f" ({finding.subject})" if finding.subject else ""
    text = _wrapped(f"{finding.id}{subject}: {finding.found}", terminal.width)
    if finding.advice:
        text += _wrapped(f"To do: {finding.advice}", terminal.width)
    colour = terminal.emphasis.get(finding.level, str)
    return colour(finding.level) + text[len(finding.level) :]


def _wrapped(text: str, width: int | None) -> str:
    if width is None:
        return f"{INDENT}{text}\n"
    return textwrap.fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT) + "\n"
