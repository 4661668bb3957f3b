"""What the doctor has found."""

from __future__ import annotations

from collections.abc import Iterable

from django_zklock.doctor import Finding


def by_id(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return findings by their ids, each with its findings in their order."""
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.id, []).append(finding)
    return found
