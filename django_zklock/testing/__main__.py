"""``python -m django_zklock.testing``: the server as a process of its own, without Django."""

from __future__ import annotations

import argparse
import sys

from .foreground import DEFAULT_PORT, run
from .server import LOOPBACK


def main() -> int:
    """Run until a signal, and return the status."""
    parser = argparse.ArgumentParser(
        prog="python -m django_zklock.testing",
        description="A ZooKeeper for tests and laptops, in memory. Not for production.",
    )
    parser.add_argument("--host", default=LOOPBACK, help="the address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 for any that is free (default: %(default)s)")
    options = parser.parse_args()
    try:
        run(options.host, options.port, sys.stdout.write)
    except OSError as error:
        print(f"cannot listen at {options.host}:{options.port}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
