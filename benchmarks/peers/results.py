"""The figures of all rounds, and their file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

# More digits say nothing, and make the file long.
SIGNIFICANT_DIGITS = 5
# The fact about a machine that differs from run to run.
DATE = "measured"


@dataclass
class Results:
    """``figures`` has, for each scenario, contestant and figure, the values of all rounds, in seconds and pieces."""

    machine: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, scenario: str, contestant: str, figures: Mapping[str, float]) -> None:
        """Add one round."""
        values = self.figures.setdefault(scenario, {}).setdefault(contestant, {})
        for name, value in figures.items():
            values.setdefault(name, []).append(float(f"{value:.{SIGNIFICANT_DIGITS}g}"))

    def contestants(self, scenario: str) -> list[str]:
        """Return the contestants of a scenario, in their order."""
        return list(self.figures.get(scenario, {}))

    def values(self, scenario: str, contestant: str, figure: str) -> Sequence[float]:
        """Return the values of a figure, none if it was not measured."""
        return self.figures.get(scenario, {}).get(contestant, {}).get(figure, [])

    def updated(self, newer: Results) -> Results:
        """Return these figures with those of the scenarios that are in ``newer``, which is of the same machine.

        Raises ValueError if it is not: figures of two machines in one table would mislead.
        """
        ours, theirs = ({**each.machine, DATE: ""} for each in (self, newer))
        if ours != theirs:
            raise ValueError(f"the other figures are of another machine: {ours}")
        return Results(newer.machine, self.figures | newer.figures)

    def save(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": self.machine, "figures": self.figures}, indent=1, ensure_ascii=False)
        # The values of a figure in one line.
        text = re.sub(r"\[[^\]]*\]", lambda found: " ".join(found[0].split()), text)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["machine"], content["figures"])
