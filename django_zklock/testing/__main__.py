"""``python -m django_zklock.testing``: the server as a process of its own, without Django's settings."""

from __future__ import annotations

import argparse
import sys

from . import foreground

COULD_NOT_RUN = 2


def main() -> None:
    """Serve until a signal, and exit."""
    parser = argparse.ArgumentParser(
        prog="python -m django_zklock.testing",
        description="A ZooKeeper for tests and laptops, in memory. Never for production.",
    )
    foreground.add_arguments(parser)
    options = parser.parse_args()
    try:
        foreground.run(options.host, options.port, allow_remote=options.allow_remote, write=_write)
    except foreground.CannotServeError as error:
        parser.exit(COULD_NOT_RUN, f"{parser.prog}: {error}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    # Who has started it waits for this, perhaps at the other end of a pipe.
    sys.stdout.flush()


if __name__ == "__main__":
    main()
