"""What the admin calls what a survey has found, in the reader's language. Texts from znodes are made harmless."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.zk import display
from django_zklock.zk.inspection.survey import Place

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


def isolated(text: str) -> SafeString:
    """Keep right-to-left text from turning around what stands next to it."""
    return format_html("<bdi>{}</bdi>", display.visible(text))


def work(place: Place) -> str:
    """Give what runs there, or who that is as far as the server knows."""
    identity = place.identity
    return display.visible(str(identity.work)) if identity and identity.work else display.who(place)


def where(place: Place) -> str:
    """Give process and host of what runs there; nothing if :func:`work` has said that, or nobody knows."""
    identity = place.identity
    if identity is None or identity.work is None:
        return ""
    return _("pid %(pid)s on %(host)s") % {"pid": identity.pid, "host": display.visible(identity.host)}


def local(moment: float) -> datetime:
    """Give a moment, in seconds since the Unix epoch, in the reader's time zone."""
    return localtime(datetime.fromtimestamp(moment, timezone.utc))


def age(place: Place) -> SafeString:
    """Give how long somebody has stood there, and since when."""
    since = local(place.since)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        since.isoformat(),
        since.isoformat(" ", "seconds"),
        display.age(time.time() - place.since),
    )
