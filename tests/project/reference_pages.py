"""The pages of the reference, by their sections."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


REFERENCE = ROOT / "docs" / "reference"


def sections(page: str, level: str = "##") -> dict[str, str]:
    """Return the text of each section of a page of the reference, deeper sections included, by heading."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    parts = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
