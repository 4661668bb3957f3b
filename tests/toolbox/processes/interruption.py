"""Signals that would end the program, kept back while it does something that must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def postponed() -> Iterator[None]:
    """Let Ctrl-C and the like take effect at the end of the block.

    For the moments between starting something and having noted that it must be ended. The signals are caught, not
    blocked: a process that is started in the block would inherit the blocking. Other threads than the main one are
    not interrupted by signals anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.getsignal(number) for number in ENDINGS}
    # What is ignored stays so; None is a handler that is not Python's.
    caught = {number: handler for number, handler in before.items() if handler not in {signal.SIG_IGN, None}}
    for number in caught:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)
        for arrival in arrived:
            signal.raise_signal(arrival)
