"""The parts of a page that are generated: each stands between two comments."""

from __future__ import annotations

import re
from collections.abc import Mapping

BLOCK = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of (?P=name) -->)", flags=re.DOTALL
)


def replace_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Return the text with the content of all blocks replaced; raise ValueError unless both have the same names."""
    names = [found["name"] for found in BLOCK.finditer(text)]
    if sorted(names) != sorted(blocks):
        different = sorted(set(names) ^ set(blocks)) or sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the blocks of the page and those that are generated differ: {', '.join(different)}")
    return BLOCK.sub(lambda found: f"{found['begin']}\n{blocks[found['name']]}\n\n{found['end']}", text)
