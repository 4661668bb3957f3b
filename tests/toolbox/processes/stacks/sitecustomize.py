"""What each Python process of the tests does when it is asked: it writes the stacks of its threads and greenlets.

Python imports this module at its start, because its folder is in ``PYTHONPATH``. Until the signal comes the process has
one more open file, and no other difference: what is imported here must be little.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
from importlib.machinery import PathFinder

# The file to write to; the tests' process holds it open.
VARIABLE = "TESTS_STACKS"
# No program that the tests start uses it: Celery, billiard and gunicorn take SIGUSR1 and SIGUSR2.
ASK = signal.SIGRTMIN + 9
END = "(end of the stacks)"
# Above the numbers that a program expects its own files to have.
FIRST_DESCRIPTOR = 200


def answer(path: str) -> None:
    """Write all stacks to the file whenever the signal comes; a fork does so too."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    file = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    os.close(opened)

    # Python calls it when the main thread runs Python code again; faulthandler writes the threads' stacks before that.
    def write_greenlets(_number: int, _frame: object) -> None:
        lines = []
        # gevent and eventlet are both made of greenlets.
        if "greenlet" in sys.modules:
            import gc
            import traceback

            for each in gc.get_objects():
                if isinstance(each, sys.modules["greenlet"].greenlet) and each.gr_frame is not None:
                    lines += [f"{each!r} (most recent call last):\n", *traceback.format_stack(each.gr_frame)]
        os.write(file, "".join([*lines, f"{END}\n"]).encode(errors="replace"))

    signal.signal(ASK, write_greenlets)
    faulthandler.register(ASK, file, chain=True)


if __name__ == "sitecustomize":
    try:  # noqa: SIM105 - contextlib is not needed otherwise
        answer(os.environ[VARIABLE])
    except (KeyError, OSError):
        # The process was started by one that outlives its test.
        pass
    # This module hides the one that the process would have without it.
    here = os.path.dirname(__file__)  # noqa: PTH120 - pathlib is not needed otherwise
    hidden = PathFinder.find_spec("sitecustomize", [place for place in sys.path if place != here])
    if hidden is not None and hidden.loader is not None:
        hidden.loader.exec_module(sys.modules[__name__])
