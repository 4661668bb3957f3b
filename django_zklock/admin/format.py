"""Texts of the admin for what was read, in the user's language. Text from znodes is hostile and is escaped."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.zk import formatting
from django_zklock.zk.ops.snapshots import QueueEntry

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

STATES: dict[str, StrOrPromise] = {
    "held": gettext_lazy("held"),
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


def bidi_isolate(text: str) -> SafeString:
    """Return ``text`` in an element that keeps right-to-left text from reordering its neighbours."""
    return format_html("<bdi>{}</bdi>", formatting.escape_controls(text))


def work_text(entry: QueueEntry) -> str:
    """Return what runs under the lock, or the session if nothing else is known."""
    identity = entry.identity
    return formatting.escape_controls(str(identity.work)) if identity and identity.work else entry.owner


def process_text(entry: QueueEntry) -> str:
    """Return process and host; nothing if they are unknown or :func:`work_text` names them already."""
    identity = entry.identity
    if identity is None or identity.work is None:
        return ""
    if identity.work.worker:
        return formatting.escape_controls(identity.process)
    return _("pid %(pid)s on %(host)s") % {"pid": identity.pid, "host": formatting.escape_controls(identity.host)}


def local_time(timestamp: float) -> datetime:
    """Return a time, in seconds since the Unix epoch, in the user's time zone."""
    return localtime(datetime.fromtimestamp(timestamp, UTC))


def age_html(entry: QueueEntry) -> SafeString:
    """Return how long the contender has been in the queue, with the start time as a tooltip."""
    since = local_time(entry.since)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        since.isoformat(),
        since.isoformat(" ", "seconds"),
        formatting.format_duration(time.time() - entry.since),
    )
