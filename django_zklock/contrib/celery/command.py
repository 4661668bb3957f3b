"""``celery zklocks``, and what lets ``celery inspect`` know the commands of the gate.

Celery's program imports this module by its entry point in the group ``celery.commands``. It imports no task modules and
does not set up Django for ``celery inspect``, so nothing else of this package is imported there.
"""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from celery.bin.control import inspect

# Registers `inspect zklocks` and `inspect zklock_gate`.
from django_zklock.contrib.celery import inspect as _commands  # noqa: F401


@click.command(cls=CeleryCommand)
@click.pass_context
@handle_preload_options
def zklocks(ctx: click.Context, **_options: Any) -> None:
    """List the tasks that hold locks or wait for them."""
    ctx.invoke(inspect, command="zklocks", timeout=1.0, destination=None, json=False)
