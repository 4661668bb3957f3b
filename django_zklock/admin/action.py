"""What may be done to whoever holds a lock: break it, or ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django import forms
from django.contrib.admin.widgets import AdminTextInputWidget
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_zklock.zk import revocation
from django_zklock.zk.inspection import breaking
from django_zklock.zk.inspection.survey import Place
from django_zklock.zk.pool import Pool

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

MAX_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Action:
    """One of the two. ``name`` is that of its address, and of its permission before ``_lock``.

    ``origin`` is what the holder reads before the name of the user; ``deed``, what the log says.
    """

    name: str
    title: StrOrPromise
    button: StrOrPromise
    done: StrOrPromise
    origin: str
    deed: str
    act: Callable[[Pool, Place, str], None]

    def is_allowed(self, request: HttpRequest) -> bool:
        """Whether the user has the permission."""
        return request.user.has_perm(f"django_zklock.{self.name}_lock")

    def why(self, request: HttpRequest, reason: str) -> str:
        """Give the reason as the holder reads it."""
        return f"{self.origin} {request.user.get_username()}: {reason}"


def _break(pool: Pool, place: Place, why: str) -> None:
    breaking.remove(pool, place.path, token=place.token, why=why, timeout=pool.options.connect_timeout)


def _revoke(pool: Pool, place: Place, why: str) -> None:
    revocation.ask(pool, place.path, why, timeout=pool.options.connect_timeout)


BREAK = Action(
    name="break",
    title=_("Break this lock?"),
    button=_("Break the lock"),
    done=_("The lock was broken: “%(who)s” does not hold it any more."),
    origin="broken by",
    deed="Broken",
    act=_break,
)
REVOKE = Action(
    name="revoke",
    title=_("Ask the holder to let go?"),
    button=_("Ask to let go"),
    done=_("“%(who)s” was asked to let go. That is a request: the lock is held until they do."),
    origin="asked by",
    deed="Asked to let go",
    act=_revoke,
)


class ReasonForm(forms.Form):
    """Why it is done, and to whom: the node and the token that were shown."""

    node = forms.CharField(max_length=256, widget=forms.HiddenInput)
    token = forms.IntegerField(widget=forms.HiddenInput)
    reason = forms.CharField(
        label=_("Reason"),
        max_length=MAX_REASON,
        widget=AdminTextInputWidget,
        help_text=_("For the holder, and for the log."),
    )
