"""An exception at a chosen instant of a thread's own code.

CPython lets signal handlers and asynchronous exceptions in at certain places only: when a Python function begins,
after a call of something written in C, and on the way back in a loop. This knows those places and raises at one of
them, so a test can visit them all, one after the other, instead of hoping to hit the bad one.

A place is known by the instructions that lead to it and not by its number: a run comes to more places or to fewer,
depending on when the server's answers arrive and on the version of Python.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any


class Injected(BaseException):
    """What is raised; no ``Exception``, as the worst of them are none."""


# Code by its id: hundreds of thousands of places are compared, and a code's own hash is that of all its instructions.
_CODES: dict[int, CodeType] = {}


@dataclass(frozen=True)
class Place:
    """An instant of a run: code and instruction of each frame, innermost first, and how often it has come there."""

    # The id of the code, and the offset of the instruction.
    frames: tuple[tuple[int, int], ...]
    what: str
    times: int

    @property
    def code(self) -> CodeType:
        """The function that is interrupted."""
        return _CODES[self.frames[0][0]]

    def is_near(self, file: str) -> bool:
        """Whether a function of ``file`` is interrupted, or one that it has called itself; of no file, always."""
        return not file or any(_CODES[number].co_filename == file for number, _offset in self.frames[:2])

    def __str__(self) -> str:
        codes = [(_CODES[number], offset) for number, offset in self.frames]
        path = " < ".join(f"{code.co_name}:{code.co_firstlineno}+{offset}" for code, offset in codes)
        return f"{path} before {self.what}, time {self.times}"


class Injector:
    """Run a call and raise :class:`Injected` where the calling thread comes to ``target``; nowhere if that is ``None``.

    ``places`` are those that the call has come to, in their order, and ``struck`` says whether it was interrupted.
    Functions in ``spared`` are not interrupted at their very first instruction where the file of the call calls them.
    """

    def __init__(self, target: Place | None, *, spared: Collection[CodeType] = ()) -> None:
        self.places: list[Place] = []
        self.struck = False
        self._target = target
        self._spared = spared
        self._times: Counter[tuple[tuple[tuple[int, int], ...], str]] = Counter()
        # What each frame executed last.
        self._last: dict[FrameType, str] = {}
        self._returned_to: FrameType | None = None
        self._caller = ""

    def run(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        self._caller = inspect.getfile(call)
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
            if frame.f_lasti <= _entry(frame.f_code) and not self._spares(frame):
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

    def _spares(self, frame: FrameType) -> bool:
        by = frame.f_back
        return frame.f_code in self._spared and by is not None and by.f_code.co_filename == self._caller

    def _consider(self, frame: FrameType, what: str) -> None:
        if self.struck:
            return
        frames = []
        at: FrameType | None = frame
        while at is not None and at.f_code is not _RUN:
            code = at.f_code
            _CODES[id(code)] = code
            frames.append((id(code), at.f_lasti))
            at = at.f_back
        here = (tuple(frames), what)
        self._times[here] += 1
        place = Place(*here, self._times[here])
        self.places.append(place)
        if place == self._target:
            self.struck = True
            raise Injected(str(place))


@cache
def _entry(code: CodeType) -> int:
    """Return the offset of the instruction at which a function begins; later ones are where a generator goes on."""
    return next((each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"), 0)


_RUN = Injector.run.__code__
