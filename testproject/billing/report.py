"""The demo's closing table, and what is wrong if something is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ledger import Books


def table(without: Books, locked: Books) -> str:
    """Set the two runs next to each other."""
    waits = locked.waits
    rows = [
        ("", without.run, locked.run),
        ("deposits", f"{without.deposits}", f"{locked.deposits}"),
        ("paid in", money(without.paid_in), money(locked.paid_in)),
        ("in the books", money(without.balance), money(locked.balance)),
        ("lost updates", f"{without.lost_updates}", f"{locked.lost_updates}"),
        ("overlaps seen", f"{without.overlaps}", f"{locked.overlaps}"),
        ("lock held", "-", f"{locked.held} times"),
        ("waited, mean", "-", f"{waits.mean:.3f} s"),
        ("waited, 95 of 100 at most", "-", f"{waits.p95:.3f} s"),
        ("waited, longest", "-", f"{waits.longest:.3f} s"),
    ]
    lines = [f"  {name:<28}{left:>16}{right:>16}".rstrip() for name, left, right in rows]
    lines.insert(1, "  " + "-" * 60)
    return "\n".join(lines)


def complaints(without: Books, locked: Books) -> list[str]:
    """Say what the demo did not show; nothing, if all is well."""
    found = []
    if without.executions != without.deposits:
        found.append(f"without the lock, {without.deposits} deposits were made by {without.executions} tasks")
    if not without.lost_updates:
        found.append("nothing was lost without the lock, so the demo showed nothing; start it again")
    if locked.lost_updates or not locked.agree:
        found.append(f"with the lock, the books do not agree: {money(locked.paid_in - locked.balance)} is missing")
    if locked.overlaps:
        found.append(f"with the lock, {locked.overlaps} tasks worked while another was at the same account")
    if locked.held != locked.executions:
        found.append(f"with the lock, {locked.executions - locked.held} tasks ran without holding it")
    if locked.disorders:
        found.append(f"with the lock, {locked.disorders} fencing tokens were not above the one before")
    return found


def money(cents: int) -> str:
    """Write an amount."""
    return f"{cents / 100:.2f}"
