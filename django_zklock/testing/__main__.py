"""``python -m django_zklock.testing``: the server as a separate process, without Django's settings."""

from __future__ import annotations

import argparse
import sys

from .server import serve

COULD_NOT_RUN = 2


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(
        prog="python -m django_zklock.testing",
        description="A ZooKeeper for tests and laptops, in memory. Never for production.",
    )
    serve.add_arguments(parser)
    options = parser.parse_args()
    try:
        serve.run(options.host, options.port, allow_remote=options.allow_remote, write=_write)
    except serve.CannotServeError as error:
        parser.exit(COULD_NOT_RUN, f"{parser.prog}: {error}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    # The parent process may wait for this at the other end of a pipe.
    sys.stdout.flush()


if __name__ == "__main__":
    main()
