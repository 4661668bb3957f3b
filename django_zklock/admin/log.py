"""Who has broken or revoked which lock, and why: the admin's own log."""

from __future__ import annotations

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.http import HttpRequest

from django_zklock.models import Lock
from django_zklock.zk import display
from django_zklock.zk.inspection.survey import Place


def write(request: HttpRequest, lock: Lock, place: Place, deed: str, reason: str) -> None:
    """Remember that the user has done ``deed`` to whoever stands in ``place``."""
    text = f"{deed}: {display.who(place)}, node {display.visible(place.node)}, token {place.token}. Reason: {reason}"
    # Nobody gets here without having logged in.
    assert request.user.pk is not None
    # The lock itself is there as before, and its page to be linked to.
    LogEntry.objects.log_actions(request.user.pk, [lock], CHANGE, text, single_object=True)


def latest(lock: Lock, count: int) -> QuerySet[LogEntry]:
    """Give the latest entries about ``lock``."""
    kind = ContentType.objects.get_for_model(Lock, for_concrete_model=False)
    return (
        LogEntry.objects.filter(content_type=kind, object_id=lock.pk)
        .select_related("user")
        .order_by("-action_time")[:count]
    )
