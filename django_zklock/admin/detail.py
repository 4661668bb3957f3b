"""The page of one lock: its queue, with a bar for the time of each contender."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.apps import apps
from django.contrib.admin.utils import quote
from django.db import Error, transaction
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_zklock.admin.format import (
    KINDS,
    STATES,
    blockers_html,
    clip,
    held_html,
    local_time,
    process_text,
    state_html,
    time_html,
    waiters_html,
    work_html,
)
from django_zklock.admin.reader import MAX_ENTRIES, AliasReader
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.models import Lock
from django_zklock.serializers import end_command, kill_command
from django_zklock.zk import formatting
from django_zklock.zk.ops import actions, sent, trail
from django_zklock.zk.ops.sent import SentCall
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry

logger = logging.getLogger("django_zklock.admin")

RESULTS_APP = "django_celery_results"
# How many actions the page of a lock shows.
MAX_RECENT = 5
# How many calls of all locks may be sent, so that the page looks for those of its own.
MAX_SENT = 1000
ACTIONS = {trail.BROKEN: _("broken"), trail.REQUESTED: _("release requested")}
SENT = {"sent": _("sent"), "unconfirmed": _("maybe not sent"), "stale": _("maybe lost")}
OUTCOMES = {trail.BROKEN: _("broken"), trail.GONE: _("no longer held"), trail.HOLDS: _("still held")}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A part of the time of a contender in the queue, as SVG lengths on a scale that ends now.

    ``name`` is "waiting", "held", or "unsure" for the time of a holder that was not the first: it is not known when it
    was granted the lock.
    """

    name: str
    start: str
    length: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry of the queue, as texts."""

    entry: QueueEntry
    work: SafeString
    where: str
    # Empty unless it tells contenders of a process apart that look alike.
    thread: str
    # Empty if django-celery-results has no result of the task.
    result_url: str
    state: Any
    kind: Any
    since: datetime
    # The time in the queue, and for a holder the time of the hold.
    age: SafeString
    held: SafeString
    node: SafeString
    bars: list[Bar]
    blockers: SafeString
    # Labels and command lines, to be copied; and whether one of them ends its task.
    commands: list[tuple[Any, str]]
    ends_task: bool


@dataclass(frozen=True, kw_only=True)
class TrailRow:
    """One action of the trail, as texts."""

    at: datetime
    by: str
    what: Any
    holder: str
    why: str
    outcome: Any


@dataclass(frozen=True, kw_only=True)
class SentRow:
    """A call that is sent and has not begun, as texts."""

    at: datetime
    task: str
    saved: int
    state: Any


def trail_of(lock: Lock, reader: AliasReader, limit: int | None = None) -> list[TrailRow]:
    """Return the last actions on ``lock``, the latest first; none if they cannot be read."""
    actions = reader.read(partial(trail.read, lock=lock.name)) or []
    return [
        TrailRow(
            at=local_time(each.at),
            by=each.by,
            what=ACTIONS[each.what],
            holder=each.holder,
            why=each.why,
            outcome=OUTCOMES[each.outcome],
        )
        for each in actions[::-1][:limit]
    ]


def sent_of(key: str, reader: AliasReader) -> list[SentCall]:
    """Return the calls of tasks that are sent and have not begun, for the lock ``key``.

    None if they cannot be read, or if those of all locks are too many for a page that is read again and again.
    """
    return [call for call in reader.read(partial(sent.find, most=MAX_SENT)) or [] if call.key == key]


def _sent_row(call: SentCall) -> SentRow:
    task = f"{call.task} [{call.id}]"
    return SentRow(at=local_time(call.since), task=task, saved=call.saved, state=SENT[call.state])


def context(lock: Lock) -> dict[str, Any]:
    """Read the queue of ``lock`` and return the variables of the template."""
    reader = AliasReader(lock.alias)
    snapshot = reader.read_lock(lock)
    variables = {"error": reader.error, "snapshot": snapshot, "read_at": local_time(time.time())}
    if snapshot is None:
        return variables
    shown = rows(snapshot, lock.alias)
    last_break = reader.read(actions.last_break, snapshot.path)
    return variables | {
        "path": formatting.escape_controls(snapshot.path),
        "state": STATES[snapshot.state],
        "state_badges": state_html(snapshot),
        "waiting": waiters_html(snapshot),
        "group": formatting.escape_controls(snapshot.key),
        "kind": KINDS[snapshot.kind],
        "rows": shown,
        "holders": [row for row in shown if row.entry.held],
        "more": len(snapshot.nodes) - len(shown),
        "grant_is_unknown": any(bar.name == "unsure" for row in shown for bar in row.bars),
        "begin": min((row.since for row in shown), default=None),
        "limit": min((entry.limit for entry in snapshot.holders if entry.limit), default=None),
        "last_break": last_break,
        "broken_at": local_time(last_break.at) if last_break else None,
        "trail": trail_of(lock, reader, MAX_RECENT),
        "sent": [_sent_row(call) for call in sent_of(snapshot.key, reader)],
        "foreign": [formatting.escape_controls(name) for name in snapshot.unknown_nodes[:MAX_ENTRIES]],
        "more_foreign": len(snapshot.unknown_nodes) - MAX_ENTRIES,
    }


def rows(snapshot: LockSnapshot, alias: str) -> list[Row]:
    """Return a row for each entry of the queue whose data was read."""
    entries = snapshot.entries
    urls = celery_result_urls([task for task in map(_task_id, entries) if task])
    # The server's clock may be ahead of ours.
    end = max([time.time(), *(entry.since for entry in entries)])
    begin = min([entry.since for entry in entries], default=end)
    return [
        Row(
            entry=entry,
            work=work_html(entry),
            where=process_text(entry),
            thread=snapshot.thread_of(entry),
            result_url=urls.get(_task_id(entry), ""),
            state=STATES[entry.state],
            kind=KINDS[entry.kind],
            since=local_time(entry.since),
            age=time_html(entry.since),
            held=held_html(entry),
            node=clip(entry.node, "zklock-id"),
            bars=_bars(entry, begin, end),
            blockers=blockers_html(snapshot.blockers_of(entry)),
            commands=_commands(snapshot.key, alias, entry),
            ends_task=bool(end_command(entry) or kill_command(entry)),
        )
        for entry in entries
    ]


def celery_result_urls(task_ids: Collection[str]) -> dict[str, str]:
    """Return the admin page of the result of each task that django-celery-results has in this database.

    If its table cannot be read, return nothing: the page of a lock does not depend on it.
    """
    if not task_ids or not apps.is_installed(RESULTS_APP):
        return {}
    results = apps.get_model(RESULTS_APP, "TaskResult").objects.filter(task_id__in=task_ids)
    try:
        # Without a savepoint a failed query would break a transaction around the page.
        with transaction.atomic(using=results.db):
            found = list(results.values_list("task_id", "pk"))
        return {task: reverse(f"admin:{RESULTS_APP}_taskresult_change", args=(quote(key),)) for task, key in found}
    except Error as error:
        logger.warning("event=no_results error=%r", error)
    except NoReverseMatch:
        # The project does not register results in its admin.
        pass
    return {}


def _task_id(entry: QueueEntry) -> str:
    identity = entry.identity
    return identity.work.id if identity and identity.work and identity.work.kind == "task" else ""


def _commands(key: str, alias: str, entry: QueueEntry) -> list[tuple[Any, str]]:
    """Return command lines about a holder; its texts are quoted for the shell."""
    using = ["--using", alias] if alias != DEFAULT_ALIAS else []
    end = ["--"] if key.startswith("-") else []
    # The setting is a command line; what follows is not the site's own.
    show = f"{formatting.program.line} {shlex.join(['zklock', 'show', *using, *end, key])}"
    lines: list[tuple[Any, str]] = [(_("Show in a terminal"), show)]
    if (end_task := end_command(entry)) is not None:
        label = _("End the task when it gets a slot") if entry.state == "granted" else _("End the task")
        lines.append((label, end_task))
    if entry.identity is not None and (kill := kill_command(entry)) is not None:
        label = _("The worker cannot end it any more; on %(host)s")
        if end_task is not None:
            label = _("If that does not end it, on %(host)s")
        lines.append((label % {"host": entry.identity.host}, kill))
    # A line with control characters could do something else than it shows.
    return [(label, line) for label, line in lines if line.isprintable()]


def _bars(entry: QueueEntry, begin: float, end: float) -> list[Bar]:
    """Return the time of a contender as bars: waiting, then holding."""
    if not entry.held:
        return [_bar("waiting", entry.since, end, begin, end)]
    if entry.granted is None:
        return [_bar("unsure", entry.since, end, begin, end)]
    granted = min(entry.granted, end)
    waited = [_bar("waiting", entry.since, granted, begin, end)] if granted > entry.since else []
    return [*waited, _bar("held", granted, end, begin, end)]


def _bar(name: str, since: float, until: float, begin: float, end: float) -> Bar:
    """Return a bar of at least one percent, so that a contender that has just joined is visible."""
    scale = end - begin
    length = max(1.0, (until - since) / scale * 100 if scale > 0 else 100.0)
    start = min((since - begin) / scale * 100 if scale > 0 else 0.0, 100.0 - length)
    return Bar(name=name, start=f"{start:.1f}%", length=f"{length:.1f}%")
