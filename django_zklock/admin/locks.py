"""The admin of live locks: read from ZooKeeper at each request, and changed by two actions that ask first."""
# ruff: noqa: ARG002 - the arguments are what Django passes to what is overridden here

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import django
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.forms import Media, Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_zklock import conf
from django_zklock.admin import action, confirmation, dashboard, filters, log, page, panel, source, words
from django_zklock.admin.action import Action
from django_zklock.admin.changelist import LockChangeList
from django_zklock.models import Lock
from django_zklock.zk import display
from django_zklock.zk.inspection.survey import Place

if TYPE_CHECKING:
    LockModelAdmin = admin.ModelAdmin[Lock]
else:
    LockModelAdmin = admin.ModelAdmin

ENTRIES_SHOWN = 5

View = Callable[..., HttpResponse]


@admin.register(Lock)
class LockAdmin(LockModelAdmin):
    """Shows the locks that somebody holds or waits for, and lets those who may break or revoke them."""

    list_display = ("key_text", "state", "holder", "age", "waiting", "kind", "token", "alias")
    list_display_links = ("key_text",)
    list_filter = filters.ALL
    list_per_page = 100
    search_fields = ("key",)
    search_help_text = _("A part of the key, or a pattern for all of it with * and ?.")
    show_facets = admin.ShowFacets.NEVER
    actions = None
    ordering = ()
    sortable_by = ("key_text", "state", "kind", "holder", "age", "waiting", "token")
    change_list_template = "admin/django_zklock/lock/change_list.html"

    class Media:
        css = {"all": ("django_zklock/admin.css",)}  # noqa: RUF012 - Django's own shape
        js = (Script("django_zklock/live.js", defer=True),)

    # Addresses.

    def get_urls(self) -> list[URLPattern]:
        """Give the list, the pages of a lock and what belongs to them: there is nothing to add or to delete."""
        known = [
            url for url in super().get_urls() if url.name and url.name.endswith(("_changelist", "_change", "_history"))
        ]
        return [
            path("json/", self._for_programs(self.json_list_view), name="django_zklock_lock_json_list"),
            path("ensembles/", self._for_people(self.ensembles_view), name="django_zklock_lock_ensembles"),
            path("<path:object_id>/json/", self._for_programs(self.json_view), name="django_zklock_lock_json"),
            path("<path:object_id>/break/", self._for_people(self.break_view), name="django_zklock_lock_break"),
            path("<path:object_id>/revoke/", self._for_people(self.revoke_view), name="django_zklock_lock_revoke"),
            *known,
        ]

    def _for_people(self, view: View) -> View:
        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            request.current_app = self.admin_site.name
            return view(request, *args, **kwargs)

        return self.admin_site.admin_view(update_wrapper(wrapped, view))

    def _for_programs(self, view: View) -> View:
        """Have ``view`` answer only those who may read, and everybody in JSON: a login page would be no help."""

        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not (self.admin_site.has_permission(request) and self.has_view_permission(request)):
                return dashboard.error(HTTPStatus.FORBIDDEN, "log in as a member of staff who may view locks")
            if request.method not in {"GET", "HEAD"}:
                return HttpResponseNotAllowed(["GET", "HEAD"])
            try:
                return view(request, *args, **kwargs)
            except Http404:
                return dashboard.error(HTTPStatus.NOT_FOUND, "no such lock")

        return update_wrapper(wrapped, view)

    # Permissions.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    # Pages.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LockChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"title": _("Locks in use"), "read_at": now()}
        return super().changelist_view(request, context | (extra_context or {}))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the line of one lock. It is read-only, whatever the name that Django has for this page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        # For the links in the template.
        request.current_app = self.admin_site.name
        lock = self._lock(request, object_id)
        found = page.context(lock)
        if found["line"] is not None:
            # The name alone may not tell all of the key.
            lock.key = found["line"].key
        context = self._context(request) | {
            "title": _("Lock"),
            "subtitle": str(lock),
            "original": lock,
            "change": True,
            "tools_within": django.VERSION < (6, 1),
            "actions": [each for each in (action.REVOKE, action.BREAK) if each.is_allowed(request)],
            "entries": log.latest(lock, ENTRIES_SHOWN),
        }
        return TemplateResponse(request, "admin/django_zklock/lock/lock.html", context | found | (extra_context or {}))

    def break_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._confirmation(request, object_id, action.BREAK)

    def revoke_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._confirmation(request, object_id, action.REVOKE)

    def ensembles_view(self, request: HttpRequest) -> HttpResponse:
        """Show the servers behind the locks."""
        context = self._context(request) | {
            "title": _("Ensembles"),
            "original": _("Ensembles"),
            "ensembles": panel.ensembles(source.every()),
        }
        return TemplateResponse(request, "admin/django_zklock/lock/ensembles.html", context)

    def json_list_view(self, request: HttpRequest) -> HttpResponse:
        """Give what the list shows for the same parameters."""
        try:
            found = self.get_changelist_instance(request)
        except (IncorrectLookupParameters, SuspiciousOperation):
            return dashboard.error(HTTPStatus.BAD_REQUEST, "there is a parameter that the list does not have")
        assert isinstance(found, LockChangeList)
        return dashboard.locks(found)

    def json_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Give what the page of a lock shows."""
        return dashboard.lock(self._lock(request, object_id))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock | None:
        """Give the lock of that id, in use or not; ``None`` if it cannot be one."""
        lock = Lock.from_id(object_id)
        try:
            known = lock.alias in conf.aliases()
        except ImproperlyConfigured:
            known = False
        return lock if known and lock.has_legal_name else None

    def _lock(self, request: HttpRequest, object_id: str) -> Lock:
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            raise Http404
        return lock

    def _confirmation(self, request: HttpRequest, object_id: str, action: Action) -> HttpResponse:
        lock = self._lock(request, object_id)
        url = reverse("admin:django_zklock_lock_change", args=(quote(lock.pk),), current_app=self.admin_site.name)
        return confirmation.respond(request, lock, action, url, self._context(request))

    def _context(self, request: HttpRequest) -> dict[str, Any]:
        return self.admin_site.each_context(request) | {
            "opts": self.opts,
            "has_view_permission": True,
            # Not all that the forms of other models need.
            "media": Media(self.Media),
        }

    # Columns. What comes from ZooKeeper goes through display.visible and is escaped.

    @admin.display(description=_("key"), ordering="key")
    def key_text(self, lock: Lock) -> str:
        return words.isolated(lock.key)

    @admin.display(description=_("state"), ordering="state")
    def state(self, lock: Lock) -> str:
        reasons = [place.revoked for place in lock.line.holders if place.revoked]
        text = words.STATES[display.state(lock.line)]
        if not reasons:
            return str(text)
        return format_html('{} <div class="quiet" title="{}">{}</div>', text, reasons[0], _("asked to let go"))

    @admin.display(description=_("kind"), ordering="kind")
    def kind(self, lock: Lock) -> str:
        return str(words.KINDS[display.kind(lock.line)])

    @admin.display(description=_("holder"), ordering="holder")
    def holder(self, lock: Lock) -> str:
        entries = [_holder(place) for place in lock.line.holders]
        more = lock.line.holding - len(entries)
        if more > 0:
            entries.append(
                format_html("{}", ngettext("and %(count)s more", "and %(count)s more", more) % {"count": more})
            )
        return format_html_join("", "<div>{}</div>", ((entry,) for entry in entries))

    @admin.display(description=_("age"), ordering="age")
    def age(self, lock: Lock) -> str:
        return words.age(lock.line.holders[0]) if lock.line.holders else ""

    @admin.display(description=_("waiting"), ordering="waiting")
    def waiting(self, lock: Lock) -> int:
        return lock.line.waiting

    @admin.display(description=_("token"), ordering="token")
    def token(self, lock: Lock) -> str:
        # As text: a number would get the thousands separators of the language.
        return str(lock.line.holders[0].token) if lock.line.holders else ""


def _holder(place: Place) -> SafeString:
    where = words.where(place)
    if not where:
        return words.isolated(words.work(place))
    return format_html('{} <div class="quiet">{}</div>', words.isolated(words.work(place)), words.isolated(where))
