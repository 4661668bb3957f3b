"""Words for people about what a survey found. Texts from the tree are hostile: they come out harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.zk.inspection.survey import Line, Place

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def visible(text: str) -> str:
    r"""Give ``text`` with what a terminal or a browser would act upon, or not show, as ``\x1b`` and the like.

    Control characters, line breaks and everything that turns the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def age(seconds: float) -> str:
    """Give a span of time in its two largest units; clocks that disagree make no negative one."""
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return _pair(whole // HOUR, "h", whole % HOUR // MINUTE, "min")
    return _pair(whole // DAY, "d", whole % DAY // HOUR, "h")


def state(line: Line) -> str:
    """Give "held", "unknown" (only nodes of recipes not known here) or "free"."""
    # By every rule the first in line holds.
    if line.nodes:
        return "held"
    return "unknown" if line.foreign else "free"


def kind(line: Line) -> str:
    """Give the kind of lock that the first in line holds or asks for."""
    return line.nodes[0].kind.value if line.nodes else ""


def who(place: Place) -> str:
    """Give who stands in ``place``: their work, process and host, or all that the server knows."""
    if place.identity is None:
        return f"unknown client, session 0x{place.session_id:x}"
    return visible(str(place.identity))


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"
