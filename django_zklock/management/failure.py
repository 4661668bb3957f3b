"""What cannot be done, said in one line and by the exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_zklock.exceptions import ZkLockError
from django_zklock.management.statuses import COULD_NOT_RUN
from django_zklock.zk import display


@contextmanager
def reported() -> Iterator[None]:
    """Within: what is wrong with settings or arguments, and what ZooKeeper does not do, becomes a ``CommandError``."""
    try:
        yield
    except (ZkLockError, ImproperlyConfigured, ValueError) as error:
        raise CommandError(one_line(error), returncode=COULD_NOT_RUN) from error


def one_line(error: Exception) -> str:
    """Give the text of an error in one line; it may quote what others wrote."""
    return display.visible(str(error))
