"""A fork behind Python's back, as servers make them that are written in C."""

from __future__ import annotations

import ctypes
import sys
import time

# Seconds, longer than it takes from the end of the pause to the fork. Not much longer: glibc can lose the wake-up of a
# thread that waits for the GIL (its bug 25847), and then that thread looks again after this time.
LONG = 20.0


def raw_fork() -> int:
    """Fork without Python's fork hooks; give 0 in the child, and the child's number in the parent.

    CPython's own locks are copied as they are. So the GIL is kept, which the child could not get back from a thread
    that it does not have, and no thread asks for it at that moment: a thread that is asked waits until another has
    had it.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LONG)
    # The threads that are waiting for it by the old interval get it.
    time.sleep(0.01)
    try:
        return int(ctypes.PyDLL(None).fork())
    finally:
        sys.setswitchinterval(interval)
