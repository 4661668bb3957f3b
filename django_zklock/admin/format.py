"""Texts of the admin for what was read, in the user's language. Text from znodes is hostile and is escaped."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.zk import formatting
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry, Span

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

MAX_GROUP = 40
# Locks that have been held for longer stand out.
OLD_AFTER = formatting.HOUR

STATES: dict[str, StrOrPromise] = {
    "held": gettext_lazy("held"),
    "granted": gettext_lazy("granted, waits for a slot"),
    "waiting": gettext_lazy("waiting"),
    "free": gettext_lazy("free"),
    "unknown": gettext_lazy("unknown"),
}
KINDS: dict[str, StrOrPromise] = {
    "": "",
    "exclusive": gettext_lazy("exclusive"),
    "write": gettext_lazy("write"),
    "read": gettext_lazy("read"),
    "lease": gettext_lazy("lease"),
}


def key_group(key: str) -> str:
    """Return what the keys of similar locks have in common: the part before the first colon or slash."""
    return formatting.escape_controls(re.split("[:/]", key, maxsplit=1)[0][:MAX_GROUP] or key[:MAX_GROUP])


def work_text(entry: QueueEntry) -> str:
    """Return what runs under the lock, or the session if nothing else is known."""
    identity = entry.identity
    return formatting.escape_controls(str(identity.work)) if identity and identity.work else entry.owner_text


def process_text(entry: QueueEntry) -> str:
    """Return process and host; nothing if they are unknown or :func:`work_text` names them already."""
    identity = entry.identity
    if identity is None or identity.work is None:
        return ""
    work = identity.work
    facts = {"pid": work.child or identity.pid, "host": identity.host, "worker": work.worker}
    facts = {name: formatting.escape_controls(str(value)) for name, value in facts.items()}
    if not work.worker:
        return _("pid %(pid)s on %(host)s") % facts
    if work.child == 0:
        return _("worker %(worker)s, main pid %(pid)s on %(host)s") % facts
    return _("pid %(pid)s on %(host)s, worker %(worker)s") % facts


def local_time(timestamp: float) -> datetime:
    """Return a time, in seconds since the Unix epoch, in the user's time zone."""
    return localtime(datetime.fromtimestamp(timestamp, UTC))


def clip(text: str, name: str = "zklock-clamp") -> SafeString:
    """Return ``text`` in an element that the style sheet cuts; the whole is its tooltip, and is copied with it."""
    text = formatting.escape_controls(text)
    return format_html('<bdi class="{}" title="{}">{}</bdi>', name, text, text)


def work_html(entry: QueueEntry) -> SafeString:
    """Return :func:`work_text` with the id in an element of its own, because most ids are long."""
    work = entry.identity.work if entry.identity else None
    if work is None or not work.id:
        return clip(work_text(entry))
    return format_html(
        '{} <span class="zklock-work-id">[{}]</span>', clip(f"{work.kind} {work.name}"), clip(work.id, "zklock-id")
    )


def badges_html(lock: LockSnapshot) -> SafeString:
    """Return badges for what is not usual: a state other than "held", and a release request with its reason."""
    badges = [(lock.state, "", STATES[lock.state])] if lock.state != "held" else []
    badges += [("granted", "", _("waits for a slot")) for entry in lock.holders if entry.state == "granted"][:1]
    badges += [("revoked", entry.revoked, _("release requested")) for entry in lock.holders if entry.revoked][:1]
    return format_html_join(" ", '<span class="zklock-badge zklock-is-{}" title="{}">{}</span>', badges)


def state_html(lock: LockSnapshot) -> SafeString:
    """Return the state of a lock as badges, "held" too."""
    held = format_html('<span class="zklock-badge zklock-is-held">{}</span> ', STATES["held"])
    return format_html("{}{}", held if lock.state == "held" else "", badges_html(lock))


def waiters_html(lock: LockSnapshot) -> SafeString:
    """Return the number of waiters as a badge."""
    return format_html(
        '<span class="zklock-badge zklock-is-contended">{}<span class="zklock-unit"> {}</span></span>',
        lock.waiter_count,
        _("waiting"),
    )


def time_html(since: float, *, name: str = "") -> SafeString:
    """Return the time since then, with the moment as a tooltip."""
    moment = local_time(since)
    return format_html(
        '<time class="{}" datetime="{}" title="{}">{}</time>',
        name,
        moment.isoformat(),
        moment.isoformat(" ", "seconds"),
        formatting.format_duration(time.time() - since),
    )


def is_old(entry: QueueEntry) -> bool:
    """Return whether the holder may have held the lock for too long."""
    return time.time() - entry.held_since > OLD_AFTER


def held_html(entry: QueueEntry) -> SafeString:
    """Return how long the holder has held the lock: "at most", if it is not known when the lock was granted."""
    age = time_html(entry.held_since, name="zklock-badge zklock-is-old" if is_old(entry) else "")
    return format_html('<span class="zklock-quiet">{}</span> {}', _("at most"), age) if entry.granted is None else age


def blockers_html(spans: Sequence[Span]) -> SafeString:
    """Return how many contenders block, and their positions, for example "5 before it" and "0, 2-5"."""
    if not spans:
        return SafeString()
    count = sum(last - first + 1 for first, last in spans)
    texts = [str(first) if first == last else f"{first}\u2013{last}" for first, last in spans]
    positions = ", ".join([*texts[:3], _("and others")] if len(texts) > 3 else texts)
    return format_html(
        '{} <span class="zklock-quiet">({})</span>',
        ngettext("%(count)s before it", "%(count)s before it", count) % {"count": count},
        positions,
    )
