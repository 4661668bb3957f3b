"""What Django must know of locks: a name for the admin and permissions. There is no table behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_zklock.zk import display, keys

if TYPE_CHECKING:
    from django_zklock.zk.inspection.survey import Line


class LockManager(models.Manager["Lock"]):
    """Finds nothing: `dumpdata` and the like ask every model, and locks are not in the database."""

    def get_queryset(self) -> models.QuerySet[Lock]:
        return super().get_queryset().none()


class Lock(models.Model):
    """A lock in ZooKeeper, for the admin and its permissions: ``django_zklock.view_lock`` and those named below.

    Read the live ones with ``manage.py zklock list`` or :mod:`django_zklock.zk.inspection.survey`.
    """

    # Alias and znode name together: no more than every database can index.
    id = models.CharField(primary_key=True, max_length=255)
    alias = models.CharField(_("alias"), max_length=50)
    key = models.TextField(_("key"))

    objects = LockManager()

    line: Line
    """What ZooKeeper said of it; on locks made by :meth:`from_line`."""

    class Meta:
        managed = False
        # For `dumpdata --all`, which asks the base manager.
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("break_lock", "Can break lock: take it away from whoever holds it"),
            ("revoke_lock", "Can revoke lock: ask whoever holds it to let go"),
        )
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return display.visible(self.key)

    @property
    def name(self) -> str:
        """The name of the znode whose children are the line."""
        return self.id.partition("/")[2]

    @property
    def has_legal_name(self) -> bool:
        """Whether ZooKeeper can have a znode of that name."""
        return self.name not in {"", ".", ".."} and not {"/", "\0"} & set(self.name)

    @classmethod
    def from_id(cls, id: str) -> Lock:  # noqa: A002 - the field's name
        """Make the lock of that id without asking ZooKeeper: of a long key, only the beginning may be known."""
        alias, _, name = id.partition("/")
        return cls(id=id, alias=alias, key=keys.readable(name))

    @classmethod
    def from_line(cls, alias: str, line: Line) -> Lock:
        """Make the lock that ``line`` of the ensemble ``alias`` is about."""
        lock = cls(id=f"{alias}/{line.path.rpartition('/')[2]}", alias=alias, key=line.key)
        lock.line = line
        return lock
