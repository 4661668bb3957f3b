"""The page that asks before something is done to a holder, and does it when it is sent back."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_zklock.admin import log, page
from django_zklock.admin.action import Action, ReasonForm
from django_zklock.admin.page import PLACES_SHOWN
from django_zklock.admin.source import Source
from django_zklock.connections import connections
from django_zklock.exceptions import NotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock
from django_zklock.zk import display
from django_zklock.zk.inspection.survey import Place

TEMPLATE = "admin/django_zklock/lock/confirmation.html"


def respond(request: HttpRequest, lock: Lock, action: Action, url: str, context: dict[str, Any]) -> HttpResponse:
    """Ask on GET; on POST do it if the holder is still the one shown, and go to ``url``, the page of the lock.

    Raises ``PermissionDenied`` if the user may not.
    """
    if not action.is_allowed(request):
        raise PermissionDenied
    form = ReasonForm(request.POST) if request.method == "POST" else None
    node = request.POST.get("node", "") if form else request.GET.get("node", "")
    source = Source(lock.alias)
    line = source.line(lock.name, PLACES_SHOWN)
    holder = next((row for row in page.rows(line) if row.place.held and row.place.node == node), None) if line else None
    if line is None or holder is None or (form and form.data.get("token") != holder.token):
        messages.error(request, source.problem or _gone())
        return redirect(url)
    # The name alone may not tell all of the key.
    lock.key = line.key
    if form and form.is_valid() and _done(request, lock, holder.place, action, form.cleaned_data["reason"]):
        return redirect(url)
    shown = {
        "title": action.title,
        "subtitle": str(lock),
        "original": lock,
        "action": action,
        "form": form or ReasonForm(initial={"node": holder.place.node, "token": holder.place.token}),
        "holder": holder,
        "line": line,
        "url": url,
    }
    return TemplateResponse(request, TEMPLATE, context | shown)


def _done(request: HttpRequest, lock: Lock, place: Place, action: Action, reason: str) -> bool:
    """Do it, tell the user what has come of it, and say whether there is nothing more to ask."""
    try:
        action.act(connections[lock.alias], place, action.why(request, reason))
    except NotHeld:
        messages.error(request, _gone())
    except ZooKeeperUnavailable as error:
        # It may have been done all the same.
        log.write(request, lock, place, f"{action.deed}, outcome not known", reason)
        messages.error(request, display.visible(str(error)))
        return False
    except ZkLockError as error:
        messages.error(request, display.visible(str(error)))
        return False
    else:
        log.write(request, lock, place, action.deed, reason)
        messages.success(request, action.done % {"who": display.who(place)})
    return True


def _gone() -> str:
    return _("Nothing was done: whoever you have seen does not hold this lock any more.")
