"""The generated parts of the page, from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.peers.capacity import capacity, ceilings, sessions
from benchmarks.peers.contestants import CONTESTANTS, REDIS
from benchmarks.peers.results import Results
from benchmarks.peers.summary import MISSING, amount, markdown, middle, number, ratio

OURS = "ours"
MICRO, MILLI = 1e-6, 1e-3
KIBI = 1024.0

# What readers call the scenarios.
ALONE = {"alone": "0 ms", "alone-1ms": "1 ms", "alone-10ms": "10 ms"}
THREADS = {"threads-2": "2", "threads-8": "8", "threads-32": "32"}
PROCESSES = {"processes-2": "2", "processes-8": "8", "processes-32": "32"}
APART = {f"{name}-1ms": count for name, count in PROCESSES.items()}
DELAYED = {"threads-8": "0 ms", "threads-8-1ms": "1 ms", "threads-8-10ms": "10 ms"}
OTHERS = {
    "try": "a try on a busy lock",
    "keys": "10 clients, 100 keys",
    "read-write": "90 % readers",
    "semaphore": "semaphore of 4",
    "several": "4 keys at once",
}
TITLES = {
    "alone": "alone",
    **{name: f"{count} threads" for name, count in THREADS.items()},
    **{name: f"{count} processes" for name, count in PROCESSES.items()},
    "alone-1ms": "alone, 1 ms each way",
    "alone-10ms": "alone, 10 ms each way",
    "threads-8-1ms": "8 threads, 1 ms each way",
    "threads-8-10ms": "8 threads, 10 ms each way",
    **{name: f"{count} processes, 1 ms each way" for name, count in APART.items()},
    **OTHERS,
}
DECORATOR = {"block": "a block under `zk_lock`", "decorated": "a function under `@zk_locked`"}
TASKS = {"unlocked": "without a lock", "gate-on": "a lock each", "gate-off": "a lock each, without the gate"}


def label(contestant: str) -> str:
    """Return what readers call a contestant."""
    return CONTESTANTS[contestant].label


def grid(
    results: Results,
    scenarios: Mapping[str, str],
    figure: str,
    unit: float,
    *,
    spread: bool = True,
    contestants: Iterable[str] = CONTESTANTS,
) -> str:
    """Return a table of one figure: a row for each contestant, a column for each scenario."""
    show = amount if spread else middle
    names = [name for name in contestants if any(name in results.contestants(each) for each in scenarios)]
    rows = [[label(name), *(show(results.values(each, name, figure), unit) for each in scenarios)] for name in names]
    return markdown(["", *scenarios.values()], rows)


def machine(results: Results) -> str:
    """Return the facts about the machine."""
    return "\n".join(f"- {name}: {value}" for name, value in results.machine.items())


def ratios(results: Results) -> str:
    """Return our time divided by that of each other contestant."""
    others = [name for name in CONTESTANTS if name != OURS]
    rows = [
        [title, *("" if value is None else number(value) for value in ratios_of(results, scenario, others))]
        for scenario, title in TITLES.items()
        if results.contestants(scenario)
    ]
    return markdown(["", *map(label, others)], rows)


def ratios_of(results: Results, scenario: str, others: Sequence[str]) -> list[float | None]:
    """Return the ratios of one scenario."""
    ours = results.values(scenario, OURS, "time")
    return [ratio(ours, results.values(scenario, other, "time")) for other in others]


def faster(results: Results) -> str:
    """Return which locks on ZooKeeper are faster than ours, and where."""
    lines = []
    for name, contestant in CONTESTANTS.items():
        if name in {OURS, "raw"} or contestant.service == REDIS:
            continue
        found = [
            f"{title} ({number(value)})"
            for scenario, title in TITLES.items()
            for value in ratios_of(results, scenario, [name])
            if value is not None and value > 1
        ]
        lines.append(f"- {label(name)} is faster in: {'; '.join(found) or 'none of these scenarios'}.")
    return "\n".join(lines)


def alone(results: Results) -> str:
    """Return all figures of the first scenario."""
    rows = [
        [
            label(name),
            amount(results.values("alone", name, "time"), MICRO),
            middle(results.values("alone", name, "client_cpu"), MICRO),
            middle(results.values("alone", name, "server_cpu"), MICRO),
            middle(results.values("alone", name, "requests")),
        ]
        for name in results.contestants("alone")
    ]
    return markdown(["", "time, µs", "CPU of the client, µs", "CPU of the server, µs", "requests"], rows)


def decorator(results: Results) -> str:
    """Return what the decorator costs."""
    rows = [
        [
            title,
            amount(results.values("decorator", name, "caller_cpu"), MICRO),
            amount(results.values("decorator", name, "time"), MICRO),
        ]
        for name, title in DECORATOR.items()
    ]
    return markdown(["", "CPU of the calling thread, µs", "time, µs"], rows)


def tasks(results: Results) -> str:
    """Return how many tasks a worker does."""
    unlocked = results.values("tasks", "unlocked", "rate")
    rows = []
    for name, title in TASKS.items():
        share = ratio(results.values("tasks", name, "rate"), unlocked)
        rows.append([
            title,
            amount(results.values("tasks", name, "rate")),
            MISSING if share is None else number(share),
            middle(results.values("tasks", name, "main_cpu"), MILLI),
            middle(results.values("tasks", name, "children_cpu"), MILLI),
        ])  # fmt: skip
    head = ["", "tasks a second", "of unlocked", "CPU of the main process, ms", "CPU of the children, ms"]
    return markdown(head, rows)


def listing(results: Results) -> str:
    """Return what listing all locks takes."""
    rows = [
        [
            title,
            amount(results.values("listing", name, "time")),
            middle(results.values("listing", name, "client_cpu")),
            middle(results.values("listing", name, "server_cpu")),
            middle(results.values("listing", name, "requests")),
        ]
        for name, title in {"ours": "`zklock list`", "kazoo": "kazoo's `contenders()` in a loop"}.items()
    ]
    return markdown(["", "time, s", "CPU of the client, s", "CPU of the server, s", "requests"], rows)


def waiters(results: Results) -> str:
    """Return what waiters cost."""
    rows = [
        [
            f"{title}, {middle(results.values('waiters', name, 'count'))} {what}",
            middle(results.values("waiters", name, "memory"), KIBI),
            middle(results.values("waiters", name, "threads")),
            middle(results.values("waiters", name, "time"), MICRO),
            middle(results.values("waiters", name, "requests")),
            middle(results.values("waiters", name, "server_data")),
            middle(results.values("waiters", name, "watches")),
        ]
        for name, title, what in (("ours", "django_zklock", "tasks of asyncio"), ("kazoo", "kazoo", "threads"))
    ]
    head = ["", "memory of one, KiB", "threads of all", "time to join, µs", "requests of one",
            "data of one at the server, bytes", "watches of one"]  # fmt: skip
    return markdown(head, rows)


def speed(results: Results) -> str:
    """Return our times beside those of the other locks on ZooKeeper, for the README."""
    scenarios = {"alone": "alone", "threads-8": "8 threads", "threads-8-10ms": "8 threads, 10 ms to the server"}
    return grid(results, scenarios, "time", MICRO, spread=False, contestants=("ours", "kazoo", "curator"))


# What stands on the page about performance.
BLOCKS: dict[str, Callable[[Results], str]] = {
    "ratios": ratios,
    "faster": faster,
    "tasks": tasks,
    "capacity": capacity,
}

# The data behind it, by their headings.
FIGURES: dict[str, Callable[[Results], str]] = {
    "The machine": machine,
    "One contender alone": alone,
    "One turn in µs, with so many threads": lambda results: grid(results, THREADS, "time", MICRO),
    "One turn in µs, with so many processes": lambda results: grid(results, PROCESSES, "time", MICRO),
    "The longest wait of a contender in a round, in ms, with so many threads": lambda results: grid(
        results, THREADS, "longest", MILLI, spread=False
    ),
    "One cycle alone in ms, with a delay each way": lambda results: grid(results, ALONE, "time", MILLI),
    "One turn of eight threads in ms, with a delay each way": lambda results: grid(results, DELAYED, "time", MILLI),
    "One turn in ms, with so many processes and 1 ms each way": lambda results: grid(results, APART, "time", MILLI),
    "One cycle of other locks, in µs": lambda results: grid(results, OTHERS, "time", MICRO),
    "Requests of one cycle": lambda results: grid(
        results, {**THREADS, **APART, **OTHERS}, "requests", 1.0, spread=False
    ),
    "CPU of the clients for one cycle, in µs": lambda results: grid(
        results, {**THREADS, **PROCESSES, **OTHERS}, "client_cpu", MICRO, spread=False
    ),
    "CPU of the server for one cycle, in µs": lambda results: grid(
        results, {**THREADS, **OTHERS}, "server_cpu", MICRO, spread=False
    ),
    "The decorator": decorator,
    "Ten thousand locks, listed": listing,
    "Ten thousand waiters": waiters,
    "The ceilings of servers": ceilings,
    "What sessions cost": sessions,
}


def blocks(results: Results) -> dict[str, str]:
    """Return the content of all blocks of the page by their names."""
    return {name: make(results) for name, make in BLOCKS.items()}


def figures(results: Results) -> str:
    """Return the data behind the page, as the page of figures includes it."""
    return "\n".join(f"### {heading}\n\n{make(results)}\n" for heading, make in FIGURES.items())
