"""The admin's list of live locks: read from ZooKeeper at each request, read-only."""
# ruff: noqa: ARG002 - the arguments are what Django passes to what is overridden here

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime, now
from django.utils.translation import gettext_lazy as _

from django_zklock import conf
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.models import Lock
from django_zklock.zk import display, survey
from django_zklock.zk.survey import Place

if TYPE_CHECKING:
    LockModelAdmin = admin.ModelAdmin[Lock]
else:
    LockModelAdmin = admin.ModelAdmin

HOLDERS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an ensemble answered: its locks, or why there are none."""

    alias: str
    locks: Sequence[Lock] = ()
    problem: str = ""


def read_all() -> list[Reading]:
    """Read the locks of every alias, all at once, so that the slowest ensemble decides how long it takes."""
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured as error:
        return [Reading(alias="", problem=str(error))]
    with ThreadPoolExecutor(len(aliases), "zklock-admin") as threads:
        return list(threads.map(_read, aliases))


def _read(alias: str) -> Reading:
    try:
        pool = connections[alias]
        lines = survey.lines(pool, timeout=pool.options.connect_timeout)
    except (ZkLockError, ImproperlyConfigured) as error:
        return Reading(alias=alias, problem=str(error))
    return Reading(alias=alias, locks=[Lock.from_line(alias, line) for line in lines])


class LockChangeList(ChangeList):
    """The admin's change list over a survey instead of a query."""

    readings: Sequence[Reading]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Lock]:
        return self.root_queryset

    def get_results(self, request: HttpRequest) -> None:
        self.readings = read_all()
        locks = [lock for reading in self.readings for lock in reading.locks]
        wanted = self.query.casefold()
        found = [lock for lock in locks if wanted in lock.key.casefold()]
        paginator = Paginator(found, self.list_per_page)
        page = paginator.get_page(self.page_num)
        self.page_num = page.number
        self.paginator = paginator
        self.result_list = page.object_list
        self.result_count = len(found)
        self.full_result_count = len(locks)
        self.show_full_result_count = True
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = paginator.num_pages > 1

    @property
    def problems(self) -> list[Reading]:
        """The aliases that could not be read."""
        return [reading for reading in self.readings if reading.problem]


@admin.register(Lock)
class LockAdmin(LockModelAdmin):
    """Shows the locks that somebody holds or waits for."""

    list_display = ("key_text", "holder", "age", "waiters", "state", "kind", "token", "alias")
    list_display_links = None
    list_per_page = 100
    search_fields = ("key",)
    actions = None
    ordering = ()
    # Nothing here is a column of a table.
    sortable_by = ()
    change_list_template = "admin/django_zklock/lock/change_list.html"

    class Media:
        css = {"all": ("django_zklock/admin.css",)}  # noqa: RUF012 - Django's own shape

    def get_urls(self) -> list[URLPattern]:
        """Give the list alone: there is nothing to add, to change, to delete or to remember."""
        return [url for url in super().get_urls() if url.name and url.name.endswith("_changelist")]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LockChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"title": _("Locks in use"), "read_at": now()}
        return super().changelist_view(request, context | (extra_context or {}))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    # Columns. What comes from ZooKeeper goes through display.visible and is escaped.

    @admin.display(description=_("key"))
    def key_text(self, lock: Lock) -> str:
        return _isolated(display.visible(lock.key))

    @admin.display(description=_("state"))
    def state(self, lock: Lock) -> str:
        return display.state(lock.line)

    @admin.display(description=_("holder"))
    def holder(self, lock: Lock) -> str:
        holders = lock.line.holders
        more = len(holders) - HOLDERS_SHOWN
        entries = [_holder(place) for place in holders[:HOLDERS_SHOWN]]
        if more > 0:
            entries.append(format_html("{}", _("and %(count)s more") % {"count": more}))
        return format_html_join("", "<div>{}</div>", ((entry,) for entry in entries))

    @admin.display(description=_("age"))
    def age(self, lock: Lock) -> str:
        if not lock.line.holders:
            return ""
        since = lock.line.holders[0].since
        moment = localtime(datetime.fromtimestamp(since, timezone.utc))
        return format_html(
            '<time datetime="{}" title="{}">{}</time>',
            moment.isoformat(),
            moment.isoformat(" ", "seconds"),
            display.age(time.time() - since),
        )

    @admin.display(description=_("waiting"))
    def waiters(self, lock: Lock) -> int:
        return len(lock.line.waiters)

    @admin.display(description=_("kind"))
    def kind(self, lock: Lock) -> str:
        return display.kind(lock.line)

    @admin.display(description=_("token"))
    def token(self, lock: Lock) -> str:
        # As text: a number would get the thousands separators of the language.
        return str(lock.line.holders[0].token) if lock.line.holders else ""


def _holder(place: Place) -> SafeString:
    identity = place.identity
    if identity is None or identity.work is None:
        return _isolated(display.who(place))
    where = _("pid %(pid)s on %(host)s") % {"pid": identity.pid, "host": display.visible(identity.host)}
    return format_html(
        '{} <div class="quiet">{}</div>',
        _isolated(display.visible(str(identity.work))),
        _isolated(where),
    )


def _isolated(text: str) -> SafeString:
    """Keep right-to-left text from turning around what stands next to it."""
    return format_html("<bdi>{}</bdi>", text)
