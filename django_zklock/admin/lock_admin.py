"""The admin of live locks: each request reads ZooKeeper, and two actions with a confirmation page change it."""
# ruff: noqa: ARG002 - Django defines the arguments of overridden methods

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial, update_wrapper
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import django
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.forms import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from django_zklock.admin import actions, detail, filters
from django_zklock.admin.actions import Action
from django_zklock.admin.changelist import LockChangeList
from django_zklock.admin.ensembles import read_ensembles
from django_zklock.admin.reader import AliasReader, readers
from django_zklock.models import Lock
from django_zklock.serializers import serialize_action, serialize_lock, serialize_sent
from django_zklock.zk.ops import trail

if TYPE_CHECKING:
    LockModelAdmin = admin.ModelAdmin[Lock]
else:
    LockModelAdmin = admin.ModelAdmin

View = Callable[..., HttpResponse]


@admin.register(Lock)
class LockAdmin(LockModelAdmin):
    """Show the locks in use; break or revoke them with the permission for it."""

    # The columns are those of the change list, whose table is not Django's.
    list_display = ("key",)
    list_filter = filters.ALL
    list_per_page = 100
    search_fields = ("key",)
    show_facets = admin.ShowFacets.NEVER
    actions = None
    ordering = ()
    sortable_by = ()
    change_list_template = "admin/django_zklock/lock/change_list.html"

    class Media:
        css = {"all": ("django_zklock/admin.css",)}  # noqa: RUF012 - Django's own shape
        js = tuple(Script(f"django_zklock/{name}.js", defer=True) for name in ("live", "contention", "copy"))

    # Addresses.

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of the list and of the lock pages, without those for adding and deleting."""
        known = [
            url for url in super().get_urls() if url.name and url.name.endswith(("_changelist", "_change", "_history"))
        ]
        return [
            path("json/", self._json_view(self.json_list_view), name="django_zklock_lock_json_list"),
            path("ensembles/", self._page_view(self.ensembles_view), name="django_zklock_lock_ensembles"),
            path(
                "<path:object_id>/history/json/",
                self._json_view(self.json_history_view),
                name="django_zklock_lock_json_history",
            ),
            path("<path:object_id>/json/", self._json_view(self.json_lock_view), name="django_zklock_lock_json"),
            *(
                path(
                    f"<path:object_id>/{action.name}/",
                    self._page_view(partial(self.confirmation_view, action=action)),
                    name=f"django_zklock_lock_{action.name}",
                )
                for action in (actions.BREAK, actions.REVOKE)
            ),
            *known,
        ]

    def _page_view(self, view: View) -> View:
        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            request.current_app = self.admin_site.name
            return view(request, *args, **kwargs)

        return self.admin_site.admin_view(update_wrapper(wrapped, view))

    def _json_view(self, view: View) -> View:
        """Return ``view`` with every refusal as JSON, because a script cannot use a login page."""

        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not (self.admin_site.has_permission(request) and self.has_view_permission(request)):
                return _json_error(HTTPStatus.FORBIDDEN, "log in as staff with the permission to view locks")
            if request.method not in {"GET", "HEAD"}:
                return HttpResponseNotAllowed(["GET", "HEAD"])
            try:
                return view(request, *args, **kwargs)
            except Http404:
                return _json_error(HTTPStatus.NOT_FOUND, "no such lock")

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
        context = {"title": _("Locks in use")}
        return super().changelist_view(request, context | (extra_context or {}))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the queue of one lock. The page is read-only, although Django calls it the change view."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        # The links of the template need it.
        request.current_app = self.admin_site.name
        lock = self._lock(request, object_id)
        context = self._context(request) | detail.context(lock)
        context |= {
            "title": str(lock),
            "original": lock,
            "change": True,
            "actions": [action for action in (actions.REVOKE, actions.BREAK) if action.is_allowed(request)],
        }
        return TemplateResponse(request, "admin/django_zklock/lock/lock.html", context | (extra_context or {}))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what was done to a lock, by ZooKeeper's trail and by the log of this site."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        lock = self._lock(request, object_id)
        reader = AliasReader(lock.alias)
        context = {"trail": detail.trail_of(lock, reader), "error": reader.error}
        return super().history_view(request, object_id, context | (extra_context or {}))

    def confirmation_view(self, request: HttpRequest, object_id: str, action: Action) -> HttpResponse:
        """Ask for a reason, or carry out ``action``."""
        lock = self._lock(request, object_id)
        url = reverse("admin:django_zklock_lock_change", args=(quote(lock.pk),), current_app=self.admin_site.name)
        return actions.confirm(request, lock, action, url, self._context(request))

    def ensembles_view(self, request: HttpRequest) -> HttpResponse:
        """Show the servers of each alias."""
        context = self._context(request) | {
            "title": _("Ensembles"),
            # The last part of the way here.
            "original": str(_("Ensembles")),
            "ensembles": read_ensembles(readers()),
        }
        return TemplateResponse(request, "admin/django_zklock/lock/ensembles.html", context)

    def json_list_view(self, request: HttpRequest) -> HttpResponse:
        """Return what the list shows for the same parameters."""
        try:
            changelist = self.get_changelist_instance(request)
        except (IncorrectLookupParameters, SuspiciousOperation):
            return _json_error(HTTPStatus.BAD_REQUEST, "unknown parameter of the list, or unknown value of a filter")
        assert isinstance(changelist, LockChangeList)
        failed, moment = changelist.failed_readers, time.time()
        content = {
            "locks": [serialize_lock(lock.alias, lock.snapshot, moment) for lock in changelist.result_list],
            "page": changelist.page_num,
            "pages": changelist.paginator.num_pages,
            "count": changelist.result_count,
            "exact": changelist.exact,
            "notices": changelist.page.notices,
            "problems": [{"alias": reader.alias, "problem": reader.error} for reader in failed],
        }
        # With at least one readable ensemble the answer is still useful.
        unavailable = failed and len(failed) == len(changelist.readers)
        return _json(content, HTTPStatus.SERVICE_UNAVAILABLE if unavailable else HTTPStatus.OK)

    def json_lock_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return what the page of a lock shows."""
        lock = self._lock(request, object_id)
        reader = AliasReader(lock.alias)
        snapshot = reader.read_lock(lock)
        if snapshot is None:
            return _json_error(HTTPStatus.SERVICE_UNAVAILABLE, reader.error)
        calls = [serialize_sent(lock.alias, call) for call in detail.sent_of(snapshot.key, reader)]
        return _json(serialize_lock(lock.alias, snapshot, time.time()) | {"sent": calls}, HTTPStatus.OK)

    def json_history_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return what was done to a lock, the oldest first."""
        lock = self._lock(request, object_id)
        reader = AliasReader(lock.alias)
        found = reader.read(partial(trail.read, lock=lock.name))
        if found is None:
            return _json_error(HTTPStatus.SERVICE_UNAVAILABLE, reader.error)
        return _json({"actions": [serialize_action(lock.alias, each) for each in found]}, HTTPStatus.OK)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock | None:
        """Return the lock with this id, in use or not; ``None`` if no lock can have it."""
        lock = Lock.from_id(object_id)
        known = [reader.alias for reader in readers() if not reader.error]
        return lock if lock.alias in known and lock.has_legal_name else None

    def _lock(self, request: HttpRequest, object_id: str) -> Lock:
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            raise Http404
        return lock

    def _context(self, request: HttpRequest) -> dict[str, Any]:
        return self.admin_site.each_context(request) | {
            "opts": self.opts,
            "app_label": self.opts.app_label,
            "tools_within": django.VERSION < (6, 1),
            # What Django's own change form has: themes use it outside of the blocks that our pages replace.
            "add": False,
            "change": False,
            "form_url": "",
            "inline_admin_formsets": [],
            "has_view_permission": True,
            "has_add_permission": False,
            "has_change_permission": False,
            "has_delete_permission": False,
            "has_editable_inline_admin_formsets": False,
            "has_file_field": False,
            "has_absolute_url": False,
            "save_as": False,
            "save_on_top": False,
            "show_save": False,
            # With Django's own scripts: some themes use its jQuery on every page.
            "media": self.media,
        }


def _json(content: dict[str, Any], status: HTTPStatus) -> JsonResponse:
    return JsonResponse(content, status=status, headers={"Cache-Control": "no-store"})


def _json_error(status: HTTPStatus, message: str) -> JsonResponse:
    return _json({"error": message}, status)
