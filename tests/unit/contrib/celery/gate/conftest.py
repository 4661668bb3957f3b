"""What holds in each test of the gate."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class Unexpected(logging.Handler):
    """Keeps the steps that the gate's table does not have, and raises where one is made."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("event=unexpected_step"):
            self.steps.append(record.getMessage())
            raise AssertionError(self.steps[-1])


@pytest.fixture(autouse=True)
def known_steps() -> Iterator[None]:
    """Let a test fail in which a request makes a step that is not in the table."""
    handler = Unexpected()
    logger = logging.getLogger("django_zklock.celery")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    # A step of the gate catches each error.
    assert handler.steps == []
