"""An exception at a chosen instant of a thread's own code.

CPython lets signal handlers and asynchronous exceptions in at certain places only: when a Python function begins,
after a call of something written in C, and on the way back in a loop. This counts those places and raises at one of
them, so a test can visit them all, one after the other, instead of hoping to hit the bad one.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any


class Injected(BaseException):
    """What is raised; no ``Exception``, as the worst of them are none."""


class Injector:
    """Run a call and raise :class:`Injected` at the place number ``target`` of the calling thread.

    ``place`` says where that was; it is ``None`` if the call had fewer places. Functions in ``spared`` are not
    interrupted at their very first instruction.
    """

    def __init__(self, target: int, *, spared: Collection[CodeType] = ()) -> None:
        self.target = target
        self.place: str | None = None
        self._spared = spared
        self._count = 0
        # What each frame executed last.
        self._last: dict[FrameType, str] = {}
        self._returned_to: FrameType | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        # Finalizers would run, and be interrupted, in the middle of it.
        gc.disable()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)
            gc.enable()
            self._last.clear()

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "call":
            if frame.f_code is _RUN:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            if frame.f_code not in self._spared and frame.f_lasti <= 0:
                self._consider(frame, "entry")
        elif event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            after_call = self._last.get(frame, "").startswith("CALL") and frame is not self._returned_to
            self._returned_to = None
            if after_call or name.startswith("JUMP_BACKWARD"):
                self._consider(frame, name)
            # The argument caches of a call are no instructions of their own.
            if name != "CACHE":
                self._last[frame] = name
        elif event == "return":
            self._last.pop(frame, None)
            # The way back from one Python function into another is none of those places, but a class and a
            # generator are called by way of C.
            by_way_of_c = frame.f_code.co_name == "__init__" or frame.f_code.co_flags & inspect.CO_GENERATOR
            self._returned_to = None if by_way_of_c else frame.f_back
        return self._trace

    def _consider(self, frame: FrameType, what: str) -> None:
        self._count += 1
        if self._count == self.target:
            callers, at = [], frame
            while at.f_code is not _RUN and at.f_back is not None:
                callers.append(f"{at.f_code.co_name}:{at.f_lineno}")
                at = at.f_back
            self.place = f"{' < '.join(callers)} before {what}"
            raise Injected(self.place)


_RUN = Injector.run.__code__
