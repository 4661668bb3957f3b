"""What a step of a world is."""

from __future__ import annotations

from collections.abc import Callable

Step = tuple[float, str, Callable[[], object]]
"""How likely it is, its name, and what it does."""
