"""The drawings of the gate in the documents, made from its table of steps.

``python -m tests.project.gate_drawing`` writes them. Where a box or a text stands is said here; which arrows there are
says the table, and an arrow without a place, or a place without an arrow, is an error.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from django_zklock.contrib.celery.gate import states
from django_zklock.contrib.celery.gate.states import STATES, STEPS, Event, Pair, Phase, Verdict

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURE = DOCS / "_static" / "gate.svg"
PAGE = DOCS / "explanation" / "architecture.md"

# Ends of all kinds come from nearly everywhere, and are told in words.
ENDS = (Event.GIVEN_BACK, Event.ENDED)


def named(pair: Pair) -> str:
    """Return a pair in the words of the page."""
    verdict = "" if pair.verdict is Verdict.NONE else f" {pair.verdict.name.lower().replace('_', ' ')}"
    return f"{pair.phase.name}{verdict}"


def table() -> str:
    """Return the steps as text: each pair that is not the last one, and what each event makes of it."""
    rows = []
    for pair in STATES:
        if pair.phase is not Phase.OVER:
            steps = [(event, made[pair]) for event, made in STEPS.items() if pair in made and event not in ENDS]
            first = named(pair)
            for event, after in steps:
                rows.append(f"{first:20} " + f"{event.name} ".ljust(14, "─") + f"▶ {named(after)}")
                first = ""
    for event in ENDS:
        phases = [pair.phase.name for pair in STEPS[event]]
        rows.append(f"{'up to ' + phases[-1]:20} " + f"{event.name} ".ljust(14, "─") + "▶ OVER")
    return "\n".join(rows)


# The boxes of the picture: the pairs, the place and size, the style, and what is said below the name.
BOXES: dict[str, tuple[set[Pair], tuple[int, int, int, int], str, tuple[str, ...]]] = {
    "queued": (
        {states.QUEUED, states.JOINING},
        (24, 160, 132, 72),
        "wait",
        ("until a slot is free;", "then it asks"),
    ),
    "waiting": ({states.WAITING}, (224, 160, 132, 72), "wait", ("a node in the", "queue of the lock")),
    "granted": (
        {states.GRANTED, states.RUN_GRANTED},
        (414, 160, 132, 72),
        "held",
        ("lock held, waits", "for the next slot"),
    ),
    "held": ({states.CLAIMED}, (604, 160, 132, 72), "held", ("the body runs;", "its end frees it")),
    "refused": (
        {states.REFUSED, states.RUN_REFUSED},
        (95, 52, 190, 56),
        "wait",
        ("the policy decides in a slot",),
    ),
    "lost": ({states.KILLED}, (604, 52, 132, 56), "lost", ("the child is killed",)),
    "running": (
        {states.IN_SLOT, states.RUN_IN_SLOT, states.RELEASED},
        (414, 304, 322, 56),
        "wait",
        ("the body takes the lock itself, or has released it",),
    ),
}
# The path of each arrow, and its text: where it is, how it is aligned, and its lines.
ARROWS: dict[tuple[str, str], tuple[str, int, int, str, tuple[str, ...]]] = {
    ("queued", "waiting"): ("M156,196 L217,196", 188, 188, "middle", ("taken",)),
    ("waiting", "granted"): ("M356,196 L407,196", 383, 188, "middle", ("turn",)),
    ("granted", "held"): ("M546,196 L597,196", 573, 188, "middle", ("slot",)),
    ("granted", "waiting"): ("M450,160 C430,124 360,124 322,154", 385, 126, "middle", ("session lost",)),
    ("queued", "granted"): ("M130,232 C180,274 380,274 444,238", 290, 256, "middle", ("free: at once",)),
    ("queued", "refused"): ("M90,160 L126,115", 96, 136, "end", ("taken, and", "not to wait")),
    ("waiting", "refused"): ("M290,160 L254,115", 282, 136, "start", ("timeout",)),
    ("queued", "running"): ("M90,232 C110,330 300,332 407,332", 180, 300, "start", ("ZooKeeper is silent",)),
    ("granted", "running"): ("M500,232 L500,297", 492, 270, "end", ("no slot, or no body", "that takes it")),
    ("held", "running"): ("M670,232 L670,297", 662, 270, "end", ("it ends",)),
    ("held", "lost"): ("M670,160 L670,115", 662, 141, "end", ("on_lost",)),
}
STYLE = """\
    .page { fill: #f7f8fa; stroke: #c9ced6 }
    .ink { fill: #1f2328 }
    .soft { fill: #57606a }
    .line { stroke: #57606a; fill: none; stroke-width: 1.5 }
    .tip { fill: #57606a }
    .held { fill: #d7f0dd; stroke: #1a7f37 }
    .wait { fill: #ffffff; stroke: #8c959f }
    .lost { fill: #ffe2e0; stroke: #cf222e }
    @media (prefers-color-scheme: dark) {
      .page { fill: #1b1f24; stroke: #444c56 }
      .ink { fill: #e6edf3 }
      .soft { fill: #a8b1bb }
      .line { stroke: #a8b1bb }
      .tip { fill: #a8b1bb }
      .held { fill: #12361f; stroke: #3fb950 }
      .wait { fill: #262c33; stroke: #768390 }
      .lost { fill: #4a1d1d; stroke: #f85149 }
    }"""
DESCRIPTION = """\
A task is queued until its worker has a free slot, then it waits in the queue of the lock, without a slot.
    When the lock is granted, it takes the next slot, and runs under the lock. From the queue of the lock it can also
    go back to the broker, or be refused by its policy. A granted task without a slot gives the lock to another
    contender after a second, and acquires it again in its slot."""


def box_of(pair: Pair) -> str:
    """Return the name of the box that a pair is in."""
    (name,) = (name for name, (pairs, *_) in BOXES.items() if pair in pairs)
    return name


def arrows() -> set[tuple[str, str]]:
    """Return the boxes between which the table has steps."""
    steps = [step for event, made in STEPS.items() if event not in ENDS for step in made.items()]
    return {(box_of(before), box_of(after)) for before, after in steps if box_of(before) != box_of(after)}


def text(x: int, y: int, words: str, *, look: str = "soft", anchor: str = "middle", more: str = "") -> str:
    """Return a line of text."""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'  <text class="{look}" x="{x}" y="{y}"{where}{more}>{escape(words)}</text>'


def picture() -> str:
    """Return the picture of the page about the gate."""
    assert arrows() == ARROWS.keys(), "an arrow has no place, or a place no arrow"
    parts = [
        text(24, 32, "in the worker's main process, without a slot", anchor="start"),
        text(736, 32, "in a slot of the pool", anchor="end"),
    ]
    for name, (_pairs, (x, y, width, height), look, lines) in BOXES.items():
        parts.append(
            f'  <rect class="{look}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8" stroke-width="1.5"/>'
        )
        middle = x + width // 2
        parts.append(text(middle, y + 24, name, look="ink", more=' font-weight="600"'))
        parts += [text(middle, y + 44 + 17 * number, line, more=' font-size="12"') for number, line in enumerate(lines)]
    for path, x, y, anchor, lines in ARROWS.values():
        parts.append(f'  <path class="line" d="{path}" marker-end="url(#arrow)"/>')
        parts += [
            text(x, y + 15 * number, line, anchor=anchor, more=' font-size="12"') for number, line in enumerate(lines)
        ]
    back = {box_of(pair) for pair in STEPS[Event.GIVEN_BACK]}
    every = {box_of(pair) for pair in STEPS[Event.ENDED]}
    assert every == BOXES.keys()
    words, small = ", ".join(name for name in BOXES if name in back), ' font-size="12.5"'
    last = [
        f"Back to the broker from {words}: too old, no slot, shutdown, broker lost.",
        "Over from each of them: result, revoked, expired, end of the child.",
    ]
    parts += [text(24, 392 + 20 * number, line, anchor="start", more=small) for number, line in enumerate(last)]
    body = "\n".join(parts)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 430" role="img" aria-labelledby="title text"
     font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="14">
  <title id="title">The states of a task at the gate</title>
  <desc id="text">{DESCRIPTION}</desc>
  <style>
{STYLE}
  </style>
  <defs>
    <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
      <path class="tip" d="M0,0 L8,4 L0,8 z"/>
    </marker>
  </defs>
  <rect class="page" x="0.5" y="0.5" width="759" height="429" rx="10"/>

{body}
</svg>
"""


START, END = "## Celery's gate\n", "\n```\n"


def page() -> str:
    """Return the page about the architecture with the table of steps."""
    found = PAGE.read_text(encoding="utf-8")
    begin = found.index("```text\n", found.index(START)) + len("```text\n")
    return found[:begin] + table() + found[found.index(END, begin) :]


def main() -> None:
    """Write the drawings."""
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
