"""Breaking and revoking a lock: the page that asks for a reason, the action, and its entry in the admin's log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import PermissionDenied
from django.db import Error, router, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock import operations
from django_zklock.admin.detail import rows
from django_zklock.admin.reader import AliasReader
from django_zklock.exceptions import NotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock
from django_zklock.zk import formatting
from django_zklock.zk.ops.snapshots import QueueEntry

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

logger = logging.getLogger("django_zklock.admin")

MAX_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Action:
    """What a user can do to a holder.

    ``name`` is the last part of the address, and of the permission before ``_lock``. ``act`` is called with the holder
    and the reason, ``by`` the user's name and ``using`` the alias; ``log_verb`` begins the entry in the log.
    """

    name: str
    title: StrOrPromise
    button: StrOrPromise
    done: StrOrPromise
    log_verb: str
    act: Callable[..., None]

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the user has the permission."""
        return request.user.has_perm(f"django_zklock.{self.name}_lock")


BREAK = Action(
    name="break",
    title=gettext_lazy("Break this lock?"),
    button=gettext_lazy("Break the lock"),
    done=gettext_lazy("The lock was broken: “%(holder)s” does not hold it any more."),
    log_verb="Broken",
    act=operations.break_lock,
)
REVOKE = Action(
    name="revoke",
    title=gettext_lazy("Request release of this lock?"),
    button=gettext_lazy("Request release"),
    done=gettext_lazy("Release was requested from “%(holder)s”, which holds the lock until its code releases it."),
    log_verb="Release requested",
    act=operations.revoke_lock,
)


class ReasonForm(forms.Form):
    """The reason, and which holder was shown to the user: its node and its token."""

    node = forms.CharField(max_length=256, widget=forms.HiddenInput)
    token = forms.IntegerField(widget=forms.HiddenInput)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=MAX_REASON,
        widget=AdminTextInputWidget,
        help_text=gettext_lazy("The holder gets this text, and the log keeps it."),
    )


def confirm(request: HttpRequest, lock: Lock, action: Action, url: str, context: dict[str, Any]) -> HttpResponse:
    """Show the form on GET; on POST act on the holder that was shown, and redirect to ``url``, the lock's page.

    Raises ``PermissionDenied`` if the user has no permission.
    """
    if not action.is_allowed(request):
        raise PermissionDenied
    form = ReasonForm(request.POST) if request.method == "POST" else None
    node = request.POST.get("node", "") if form else request.GET.get("node", "")
    reader = AliasReader(lock.alias)
    # There may be more holders than the page of the lock shows.
    snapshot = reader.read_lock(lock, node)
    shown = rows(snapshot, lock.alias) if snapshot else []
    holder = next((row for row in shown if row.entry.held and row.entry.node == node), None)
    if snapshot is None or holder is None or (form and form.data.get("token") != str(holder.entry.token)):
        messages.error(request, reader.error or _not_held())
        return redirect(url)
    if form and form.is_valid() and _act(request, lock, holder.entry, action, form.cleaned_data["reason"]):
        return redirect(url)
    variables = {
        "title": action.title,
        "subtitle": str(lock),
        "original": lock,
        "action": action,
        "form": form or ReasonForm(initial={"node": holder.entry.node, "token": holder.entry.token}),
        "holder": holder,
        "snapshot": snapshot,
        "url": url,
    }
    return TemplateResponse(request, "admin/django_zklock/lock/confirmation.html", context | variables)


def _act(request: HttpRequest, lock: Lock, entry: QueueEntry, action: Action, reason: str) -> bool:
    """Act, tell the user the outcome, and return whether it is known."""

    def act() -> None:
        action.act(entry, reason, by=request.user.get_username(), using=lock.alias)

    logged = known = True
    try:
        logged = _write_log(request, lock, entry, action.log_verb, reason, act=act)
    except NotHeld as error:
        # It names the operator that has broken the lock meanwhile.
        messages.error(request, f"{_not_held()} {formatting.escape_controls(str(error))}.")
    except ZooKeeperUnavailable as error:
        # ZooKeeper may have carried out the request before the connection was lost.
        known = False
        logged = _write_log(request, lock, entry, f"{action.log_verb}, outcome not known", reason)
        messages.error(request, formatting.escape_controls(str(error)))
    except ZkLockError as error:
        messages.error(request, formatting.escape_controls(str(error)))
    else:
        messages.success(request, action.done % {"holder": entry.owner_text})
    if not logged:
        messages.warning(request, _("The action is not in the log: writing to the database failed."))
    return known


def _not_held() -> str:
    return _("Nothing was done: the holder that was shown does not hold this lock any more.")


def _write_log(
    request: HttpRequest,
    lock: Lock,
    entry: QueueEntry,
    verb: str,
    reason: str,
    *,
    act: Callable[[], None] = lambda: None,
) -> bool:
    """Add an entry to the log, then call ``act``, in one transaction; return whether the entry was written.

    An error of ``act`` removes the entry again. If the database cannot be written, ``act`` is called all the same.
    """
    node = formatting.escape_controls(entry.node)
    text = f"{verb}: {entry.owner_text}, node {node}, token {entry.token}. Reason: {reason}"
    # Views of the admin require a login.
    assert request.user.pk is not None
    acted = False
    try:
        with transaction.atomic(using=router.db_for_write(LogEntry)):
            # CHANGE and not DELETION, because the log entry links to the page of the lock.
            LogEntry.objects.log_actions(request.user.pk, [lock], CHANGE, text, single_object=True)
            act()
            acted = True
    except Error as error:
        if not acted:
            act()
        logger.warning(
            "event=not_logged action=%r user=%s alias=%s key=%r node=%s reason=%r error=%r",
            verb, request.user.pk, lock.alias, lock.key, entry.node, reason, error,
        )  # fmt: skip
        return False
    return True
