"""Writes that a database refuses from a holder that is late: the largest token is stored beside the data.

A holder may be paused between its last look at the lock and its write, and continue when another one has written. So
each fenced write puts its token into the row, in the statement that writes, and only where no larger one stands.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

from asgiref.sync import sync_to_async
from django.core import checks
from django.core.exceptions import EmptyResultSet, ImproperlyConfigured
from django.db import connections, models, router, transaction
from django.utils.translation import gettext_lazy as _

from django_zklock import conf
from django_zklock.conf import DEFAULT_ALIAS, TOKEN_BITS
from django_zklock.connections import Using, alias_of, check_using
from django_zklock.exceptions import NotHeld, StaleToken
from django_zklock.zk import owners
from django_zklock.zk.held import Held
from django_zklock.zk.queue import SHARED

FIELD = "fence"


class _Saving(NamedTuple):
    """What a ``save()`` writes. Not the hold itself: a receiver may pickle the instance."""

    key: str
    token: int
    fence: int
    force_insert: bool


class FencedModel(models.Model):
    """A model whose rows remember the largest token of their writers.

    ``save()`` under an exclusive lock raises ``StaleToken`` if a later holder has written the row, and changes nothing.
    Without a lock it is Django's own, and leaves the fence alone. Everything else that writes is Django's own too.

    A row belongs to one lock of one ensemble: tokens of others cannot be compared. ``fence_using`` is the alias of the
    ensemble in ``ZKLOCK``, or the function of the key that the locks have as ``using``, which is then called
    for the key of every lock that the caller holds.
    """

    fence = models.BigIntegerField(_("fence"), default=0, db_default=0, editable=False)

    fence_using: ClassVar[Using] = DEFAULT_ALIAS

    # That of the running `save()`: Django calls the methods below without arguments of ours.
    _saving: _Saving | None = None

    class Meta:
        abstract = True

    def save(self, *args: Any, held: Held | None = None, **kwargs: Any) -> None:
        """Save the instance as the holder of a lock: of ``held``, or of the only lock that the caller holds.

        Raise ``StaleToken`` if a later holder has written, or if the row that the instance was read from is gone;
        ``LockLost`` if the lock is known to be lost; ``ValueError`` if the caller holds several locks and none is
        named. As after any error of a database, a transaction around it has to be rolled back.
        """
        # Not of the instance, of which a function would be a method.
        using = type(self).fence_using
        held = held or _only_hold(using)
        # A receiver of pre_save or post_save may save the same instance.
        outer = self._saving
        if held is None:
            self._saving = None
        else:
            force_insert = bool(kwargs.get("force_insert", args[0] if args else False))
            self._saving = _Saving(held.key, held.token, fence_of(held, using), force_insert)
        try:
            super().save(*args, **kwargs)
        finally:
            self._saving = outer

    save.alters_data = True  # type: ignore[attr-defined] # templates must not call it

    async def asave(self, *args: Any, held: Held | None = None, **kwargs: Any) -> None:
        """Save the instance as :meth:`save` does, without blocking the event loop."""
        await sync_to_async(self.save)(*args, held=held, **kwargs)

    asave.alters_data = True  # type: ignore[attr-defined]

    def _do_insert(self, manager: Any, using: str, *args: Any) -> Any:
        if self._saving is not None:
            # Django inserts what it does not find: what a later holder has deleted, with its fence.
            if self.pk is not None and self._is_stored(using) and not self._saving.force_insert:
                name = f"the {self._meta.object_name} with the primary key {self.pk!r} is gone"
                raise _stale(self._saving.key, self._saving.token, f"{name} (force_insert=True inserts it)")
            self.fence = self._saving.fence
        return super()._do_insert(manager, using, *args)  # type: ignore[misc]

    def _is_stored(self, using: str) -> bool:
        """Whether the instance was read from or saved in this database, by a replica of it too."""
        if self._state.adding:
            return False
        return using in {self._state.db, router.db_for_write(type(self), instance=self)}

    # The arguments behind the values differ between the versions of Django.
    def _do_update(self, base_qs: Any, using: str, pk_val: Any, values: Any, *args: Any) -> Any:  # type: ignore[override]
        field = self._meta.get_field(FIELD)
        # Not that of the instance, which may have been read before a later holder has written.
        values = [value for value in values if value[0] is not field]
        # A model that inherits a table has two of them.
        if self._saving is None or field.model is not base_qs.model:
            return super()._do_update(base_qs, using, pk_val, values, *args)
        key, token, fence, _force_insert = self._saving
        values.append((field, None, fence))
        updated = super()._do_update(base_qs.filter(fence__lte=fence), using, pk_val, values, *args)
        # With select_on_save Django may have found the row, by a query, and not updated it.
        if not updated or self._meta.select_on_save:
            _check_not_stale(base_qs.filter(pk=pk_val), key, token, fence)
        if updated:
            self.fence = fence
        return updated

    @classmethod
    def check(cls, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return Django's messages about the model, and one if ``fence_using`` is no alias and no function."""
        messages = super().check(**kwargs)
        try:
            check_using(cls.fence_using)
            if isinstance(cls.fence_using, str):
                conf.database_options(cls.fence_using)
        except (ImproperlyConfigured, TypeError) as error:
            hint = "Set fence_using to the alias of the ensemble whose locks guard the rows."
            messages.append(checks.Error(str(error), hint=hint, obj=cls, id="django_zklock.E005"))
        return messages


Model = TypeVar("Model", bound=FencedModel)


# Positional, because a model may have fields with these names.
def fenced_update(queryset: models.QuerySet[Model], held: Held | None = None, /, **values: Any) -> int:
    """Update the rows of ``queryset`` as the holder of a lock, and return their number.

    The holder is that of ``held``, or of the only lock that the caller holds. ``values`` are those of
    ``QuerySet.update()``; without any the rows get the token alone, so that no earlier holder can write from then on.

    If a later holder has written any of these rows, raise ``StaleToken``, and change none. Raise ``NotHeld`` if the
    caller holds no lock, ``LockLost`` if the lock is known to be lost, ``ValueError`` if the caller holds several locks
    and none is named, and ``TypeError`` for a model whose table has no fence, for a value that is in the table of
    another model, which takes two statements, and for rows that are found by a join or a subquery.
    """
    model = queryset.model
    if not issubclass(model, FencedModel):
        raise TypeError(f"fenced_update needs a FencedModel, and {model.__name__} is none")
    for name in (FIELD, *values):
        table = model._meta.get_field(name).model
        if table._meta.concrete_model is not model._meta.concrete_model:
            raise TypeError(
                f"fenced_update writes one table, and {name!r} of {model.__name__} is in that of {table.__name__}"
            )
    held = held or _only_hold(model.fence_using)
    if held is None:
        raise NotHeld(f"{model.__name__} is to be updated with a fence, and no lock is held here that has its tokens")
    fence = fence_of(held, model.fence_using)
    # Where it says nothing else, the database to write to: this is what select_for_update is asked for.
    using = queryset.select_for_update().db
    rows = queryset.using(using)
    # An update locks its rows by itself, and the look for stale rows must not skip those that are locked.
    rows.query.select_for_update = False
    _check_one_query(rows, using)
    with transaction.atomic(using):
        updated = rows.filter(fence__lte=fence).update(**values, fence=fence)
        # Some rows may have been updated, and others not, because they were stale or written meanwhile.
        _check_not_stale(rows, held.key, held.token, fence)
    return updated


async def afenced_update(queryset: models.QuerySet[Model], held: Held | None = None, /, **values: Any) -> int:
    """Update as :func:`fenced_update` does, without blocking the event loop."""
    return await sync_to_async(fenced_update)(queryset, held, **values)


def fence_of(held: Held, using: Using) -> int:
    """Return what a hold of the ensemble ``using`` writes: the generation of the ensemble, and the token.

    Raise ``LockLost`` or ``NotHeld`` if it is not held any more, and ``ValueError`` if its token does not tell
    which holder is the later one.
    """
    held.check()
    alias = held.lock.pool.name
    if not _is_of(held, using):
        raise ValueError(
            f"lock {held.key!r} is of the ensemble {alias!r}, and the fences are of {using!r} "
            f"(fence_using): tokens of two ensembles cannot be compared"
        )
    if held.rule.kind in SHARED:
        raise ValueError(f"lock {held.key!r} is held as {held.rule}, beside others: fence with an exclusive lock")
    if held.token >> TOKEN_BITS:
        raise ValueError(f"token {held.token} has more than {TOKEN_BITS} bits, which leaves none for the generation")
    return conf.database_options(alias).generation << TOKEN_BITS | held.token


def _is_of(held: Held, using: Using) -> bool:
    return all(held.lock.pool.name == alias_of(key, using) for key in held.lock.keys)


def _only_hold(using: Using) -> Held | None:
    """Return the lock of the ensemble ``using`` that the caller holds alone, ``None`` if there is none."""
    # A hold that was inherited over a fork does not count.
    found: list[Held] = []
    for held in owners.caller().available():
        # Not one that was inherited over a fork, and one that is nested in another one is the same lock.
        counts = held._counts_for(held.lock) and _is_of(held, using) and held.rule.kind not in SHARED
        if counts and not any(held._possession is each._possession for each in found):
            found.append(held)
    if len(found) > 1:
        keys = ", ".join(repr(held.key) for held in found)
        raise ValueError(f"several locks are held here, {keys}: name the one that guards the row")
    return next(iter(found), None)


def _check_one_query(rows: models.QuerySet[Model], using: str) -> None:
    """Raise ``TypeError`` if other rows decide which rows these are: by a join or a subquery.

    After the update such a condition may no longer find a row that was stale. And Django updates what it finds by a
    join in a subquery, where the fence is read before the row is locked: a later holder could write in between.
    """
    is_one = sum(map(bool, rows.query.alias_refcount.values())) <= 1
    if is_one:
        try:
            is_one = rows.query.get_compiler(using).as_sql()[0].count("SELECT ") <= 1
        except EmptyResultSet:  # no row at all
            return
    if not is_one:
        raise TypeError(
            f"fenced_update cannot find the rows of {rows.model.__name__} by a join or a subquery: read their primary "
            f"keys first, and give filter(pk__in=[…])"
        )


def _check_not_stale(rows: models.QuerySet[Model], key: str, token: int, fence: int) -> None:
    """Raise ``StaleToken`` if a later holder has written one of ``rows``."""
    connection = connections[rows.db]
    later = rows.filter(fence__gt=fence)
    if connection.vendor == "mysql" and not connection.get_autocommit():
        # With repeatable reads a plain query sees the rows as they were when the transaction began; a locking one does
        # not, as little as the update.
        later = later.select_for_update()
    if later.exists():
        raise _stale(key, token, f"a later holder has written {rows.model.__name__}")


def _stale(key: str, token: int, why: str) -> StaleToken:
    return StaleToken(
        f"the token {token} of lock {key!r} is stale: {why}, and nothing was changed; if the ensemble has "
        f"lost its data, its tokens have begun anew (GENERATION)",
        key=key,
    )
