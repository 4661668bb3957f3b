"""One command of Celery without its program, which imports all of them, and a shell, at every start.

Give the app, the command (``worker`` or ``beat``), and its options.
"""

from __future__ import annotations

from celery import maybe_patch_concurrency

# Before anything else is imported.
maybe_patch_concurrency()

import sys  # noqa: E402
from importlib import import_module  # noqa: E402
from importlib.metadata import entry_points  # noqa: E402

from celery.app.utils import find_app  # noqa: E402
from celery.bin.base import CLIContext  # noqa: E402

if __name__ == "__main__":
    app, name, *options = sys.argv[1:]
    context = CLIContext(app=find_app(app), no_color=False, workdir=None)
    # Those of packages, as the program does: one of them lets a worker without this app answer about its gate.
    for added in entry_points(group="celery.commands"):
        added.load()
    command = getattr(import_module(f"celery.bin.{name}"), name)
    command.main(options, obj=context, auto_envvar_prefix=f"CELERY_{name.upper()}")
