"""The unmanaged model of locks, for the admin and its permissions. It has no table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_zklock.zk import formatting, paths

if TYPE_CHECKING:
    from django_zklock.zk.ops.snapshots import LockSnapshot


class LockManager(models.Manager["Lock"]):
    """Finds nothing: `dumpdata` and similar commands read every model, and locks are not in the database."""

    def get_queryset(self) -> models.QuerySet[Lock]:
        return super().get_queryset().none()


class Lock(models.Model):
    """A lock in ZooKeeper, for the admin and its permissions: ``django_zklock.view_lock`` and the two in ``Meta``.

    Read live locks with ``manage.py zklock list`` or :mod:`django_zklock.zk.ops.search`.
    """

    # Alias and znode name. Every database can index this length.
    id = models.CharField(primary_key=True, max_length=255)
    alias = models.CharField(_("alias"), max_length=50)
    key = models.TextField(_("key"))

    objects = LockManager()

    snapshot: LockSnapshot
    """What was read from ZooKeeper; only on locks from :meth:`from_snapshot`."""

    class Meta:
        managed = False
        # For `dumpdata --all`, which uses the base manager.
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("break_lock", "Can break lock: take it away from its holder"),
            ("revoke_lock", "Can revoke lock: request release from its holder"),
        )
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return formatting.escape_controls(self.key)

    @property
    def name(self) -> str:
        """The name of the znode whose children are the queue."""
        return self.id.partition("/")[2]

    @property
    def has_legal_name(self) -> bool:
        """Whether ZooKeeper accepts this name for a znode."""
        return self.name not in {"", ".", ".."} and not {"/", "\0"} & set(self.name)

    @classmethod
    def from_id(cls, id: str) -> Lock:  # noqa: A002 - the field's name
        """Return the lock of that id without reading ZooKeeper, so that only the beginning of a long key is known."""
        alias, _, name = id.partition("/")
        return cls(id=id, alias=alias, key=paths.display_key(name))

    @classmethod
    def from_snapshot(cls, alias: str, snapshot: LockSnapshot) -> Lock:
        """Return the lock of a ``snapshot`` that was read from the ensemble ``alias``."""
        lock = cls(id=f"{alias}/{snapshot.path.rpartition('/')[2]}", alias=alias, key=snapshot.key)
        lock.snapshot = snapshot
        return lock
