"""The setting ``ZKLOCK``, as far as it can be judged without the network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from django.core import checks as django_checks

from django_zklock import checks
from django_zklock.findings import Finding, Level
from django_zklock.zk.pool import PoolOptions


def readable(alias: str, options: PoolOptions) -> Finding:
    """Say what the settings of ``alias`` point to."""
    found = f"locks are under {options.root} at {options.connection.hosts}"
    return Finding(id="settings.readable", level="ok", subject=alias, found=found)


def unreadable(alias: str, error: Exception) -> Finding:
    """Say why the settings of ``alias`` are of no use."""
    return Finding(
        id="settings.readable",
        level="error",
        subject=alias,
        found=str(error),
        advice="Correct ZKLOCK; the reference of settings says what it may contain.",
    )


def examine_checks() -> Iterator[Finding]:
    """Say what the system checks have to say, those for all aliases; what is silenced is left out."""
    finding = partial(Finding, id="settings.checks")
    messages = [message for message in _messages() if not message.is_silenced()]
    for message in messages:
        yield finding(level=_level(message), subject=str(message.id), found=str(message.msg), advice=message.hint or "")
    if not messages:
        yield finding(level="ok", subject="ZKLOCK", found="the system checks have no complaint")


def _messages() -> Iterator[django_checks.CheckMessage]:
    # Whether the setting can be read is told by `readable`, for the alias that is looked at.
    for check in checks.ALL:
        if check is not checks.settings_can_be_read:
            yield from check()


def _level(message: django_checks.CheckMessage) -> Level:
    return "error" if message.level >= django_checks.ERROR else "warning"
