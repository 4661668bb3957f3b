"""All scenarios, in the order of the page."""

from __future__ import annotations

from benchmarks.peers.ceiling import CeilingScenario
from benchmarks.peers.decorator import DecoratorScenario
from benchmarks.peers.listing import ListingScenario
from benchmarks.peers.scenario import LockScenario, Scenario
from benchmarks.peers.sessions import SessionScenario
from benchmarks.peers.tiny_tasks import TinyTaskScenario
from benchmarks.peers.waiters import WaiterScenario

CONTENDERS = (2, 8, 32)
# Each way, in milliseconds.
DELAYS = (1, 10)
# With a longer delay a round needs more time for the same number of cycles, and the rounds differ less.
SECONDS_BY_DELAY = {1: 0.6, 10: 1.2}
ROUNDS_BY_DELAY = {1: None, 10: 3}
# Many contenders need some of the time until all have joined for the first time.
SECONDS = {2: 0.4, 8: 0.4, 32: 1.0}
SECONDS_OF_OTHERS = 0.4

ALL: tuple[Scenario, ...] = (
    LockScenario(name="alone"),
    *(LockScenario(name=f"threads-{count}", contenders=count, seconds=SECONDS[count]) for count in CONTENDERS),
    *(
        LockScenario(name=f"processes-{count}", contenders=count, processes=True, seconds=SECONDS[count])
        for count in CONTENDERS
    ),
    *(
        LockScenario(
            name=f"{name}-{ms}ms",
            contenders=contenders,
            delay=ms / 1000,
            seconds=SECONDS_BY_DELAY[ms],
            max_rounds=ROUNDS_BY_DELAY[ms],
        )
        for name, contenders in (("alone", 1), ("threads-8", 8))
        for ms in DELAYS
    ),
    # As on hosts of their own, which share the processor here.
    *(
        LockScenario(
            name=f"processes-{count}-1ms",
            contenders=count,
            processes=True,
            delay=0.001,
            seconds=max(SECONDS[count], SECONDS_BY_DELAY[1]),
        )
        for count in CONTENDERS
    ),
    LockScenario(name="try", kind="try"),
    LockScenario(name="keys", contenders=10, processes=True, keys=100, seconds=SECONDS_OF_OTHERS),
    LockScenario(name="read-write", kind="mixed", contenders=8, seconds=SECONDS_OF_OTHERS),
    LockScenario(name="semaphore", kind="semaphore", contenders=8, seconds=SECONDS_OF_OTHERS),
    LockScenario(name="several", kind="several", keys=4),
    DecoratorScenario(),
    TinyTaskScenario(),
    ListingScenario(),
    WaiterScenario(),
    CeilingScenario(),
    SessionScenario(),
)
SCENARIOS = {each.name: each for each in ALL}
