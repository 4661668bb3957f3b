"""The drawings of the gate are made from its table of steps."""

from __future__ import annotations

import pytest

pytest.importorskip("celery")

from django_zklock.contrib.celery.gate.states import STATES, STEPS, Phase
from tests.project import gate_drawing

pytestmark = pytest.mark.once


def test_picture__is_that_of_the_table() -> None:
    """The picture has an arrow for each step between its boxes, and no other."""
    assert gate_drawing.PICTURE.read_text(encoding="utf-8") == gate_drawing.picture()


def test_page__has_the_table() -> None:
    """The page about the architecture has each step."""
    assert gate_drawing.PAGE.read_text(encoding="utf-8") == gate_drawing.page()


def test_steps__end() -> None:
    """From each pair there is a way to the end, each pair can be reached, and no step leads out of the end."""
    found = {pair for made in STEPS.values() for pair in made.values()}
    assert {pair for pair in STATES if pair.phase is not Phase.QUEUED} - found == set()
    assert not [pair for made in STEPS.values() for pair in made if pair.phase is Phase.OVER]
