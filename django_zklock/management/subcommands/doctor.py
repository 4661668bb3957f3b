"""``zklock doctor``: examine everything that the locks of an ensemble depend on."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django_zklock import doctor
from django_zklock.doctor import Finding
from django_zklock.management.subcommands import _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import FOUND_PROBLEM, OK

HELP = "examine everything that locks depend on, and say what to do"

# The longest level and a gap.
INDENT = " " * (max(map(len, doctor.LEVELS)) + 2)


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_alias(parser)
    arguments.add_format(parser)


def run(terminal: Terminal, *, using: str, format: str, **_options: Any) -> int:  # noqa: A002 - the option's name
    findings = []
    for finding in doctor.run(using):
        findings.append(finding)
        if format == "table":
            # At once: the next examination may take until a timeout.
            terminal.write(_text(finding, terminal))
    if format == "json":
        terminal.write(_output.object_json({"alias": using, "findings": [asdict(finding) for finding in findings]}))
    return FOUND_PROBLEM if any(finding.level in {"warning", "error"} for finding in findings) else OK


def _text(finding: Finding, terminal: Terminal) -> str:
    subject = f" ({finding.subject})" if finding.subject else ""
    text = _wrapped(f"{finding.id}{subject}: {finding.found}", terminal.width)
    if finding.advice:
        text += _wrapped(f"To do: {finding.advice}", terminal.width)
    colour = terminal.styles.get(finding.level, str)
    return colour(finding.level) + text[len(finding.level) :]


def _wrapped(text: str, width: int | None) -> str:
    if width is None:
        return f"{INDENT}{text}\n"
    return textwrap.fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT) + "\n"
