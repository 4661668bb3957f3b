"""What ``make bench`` makes of its figures, and a small run of it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.toolbox.network.port import LOOPBACK

# A contributor has them; some environments of the matrix do not.
pytest.importorskip("matplotlib")
pytest.importorskip("redis")

from benchmarks.peers.__main__ import FIGURES, PAGE, PLOTS, README, RESULTS, ROOT, measure, turns
from benchmarks.peers.arena import Arena, module
from benchmarks.peers.capacity import capacity
from benchmarks.peers.ceiling import Step, ceiling_of, steps_of
from benchmarks.peers.clients.crew import Outcome, cycles_of, repeat
from benchmarks.peers.load import Load
from benchmarks.peers.page import replace_blocks
from benchmarks.peers.plots import PLOTS as ALL_PLOTS
from benchmarks.peers.plots import THEMES, draw
from benchmarks.peers.program import Figures, Program, ProgramError
from benchmarks.peers.results import Results
from benchmarks.peers.scenario import Round
from benchmarks.peers.scenarios import SCENARIOS
from benchmarks.peers.summary import Summary
from benchmarks.peers.tables import BLOCKS, blocks, faster, figures, ratios, speed
from benchmarks.peers.team import Team
from benchmarks.peers.warm_up import MAX_TURNS, WarmUp
from tests.toolbox.timing import scaled

pytestmark = pytest.mark.once

# A program of a team: two cycles, of which one ends in time, at a moment that depends on its number.
MEMBER = """
import sys
for line in sys.stdin:
    name, *words = line.split()
    if name == "open":
        words = dict(word.split("=") for word in words)
        number = int(words["number"])
        assert words["contenders"] == "1" and words["processes"] == "0", words
    elif name == "run":
        start = float(dict(word.split("=") for word in words)["start"])
        if number == 2:
            sys.exit(3)
        moments = f"last={start + 1 + number} end={start + 5} longest={number}"
        print("ok cycles=2 counted=1 cpu=0.25", moments, flush=True)
        continue
    print("ok", flush=True)
"""

# A program that answers "double", dies at "die" and is silent at anything else.
CHILD = """
import sys
for line in sys.stdin:
    name, *words = line.split()
    if name == "double":
        print("ok", f"value={2 * float(words[0].partition('=')[2])}", flush=True)
    elif name == "die":
        sys.exit(3)
"""


@pytest.fixture
def results() -> Results:
    """Return figures of two scenarios: ours is twice as fast alone as kazoo, and half as fast as Curator."""
    results = Results(machine={"CPUs": "2"})
    for value in (1e-3, 3e-3, 2e-3):
        results.add("alone", "ours", {"time": value, "requests": 3})
        results.add("alone", "kazoo", {"time": 2 * value, "requests": 4})
        results.add("alone", "curator", {"time": value / 2, "requests": 3})
    results.add("threads-8", "ours", {"time": 1e-3, "requests": 6})
    results.add("sessions", "ours", {"requests_per_timeout": 15})
    results.add(
        "ceiling", "standalone", climbing([(1, 1000, 0.001), (2, 1900, 0.0011), (4, 2000, 0.002), (8, 2100, 0.004)])
    )
    return results


def climbing(steps: Sequence[tuple[int, float, float]]) -> Figures:
    """Return the figures of the steps of a ceiling."""
    return {
        f"{name}@{clients}": value
        for clients, rate, latency in steps
        for name, value in (("rate", rate), ("latency", latency), ("server_cpu", 1e-4))
    }


# Summaries.


def test_summary() -> None:
    """The median and both quartiles; a single value is all three."""
    assert Summary.of([5, 1, 3, 2, 4]) == Summary(3, 2, 4)
    assert Summary.of([7]) == Summary(7, 7, 7)


# Results, tables and the page.


def test_results__saved_and_loaded(results: Results, tmp_path: Path) -> None:
    """A file has all figures, and the values of one in one line."""
    results.save(tmp_path / "folder" / "results.json")
    assert Results.load(tmp_path / "folder" / "results.json") == results
    assert '"time": [ 0.001, 0.003, 0.002 ]' in (tmp_path / "folder" / "results.json").read_text()


def test_results__updated(results: Results) -> None:
    """Newer figures take the place of those of their scenarios alone, and must be of the same machine."""
    newer = Results(machine={"CPUs": "2", "measured": "today"})
    newer.add("threads-8", "ours", {"time": 5e-3})
    updated = results.updated(newer)
    assert updated.machine == newer.machine
    assert updated.values("threads-8", "ours", "time") == [5e-3]
    assert updated.values("threads-8", "ours", "requests") == []
    assert updated.figures["alone"] == results.figures["alone"]
    with pytest.raises(ValueError, match="another machine"):
        results.updated(Results(machine={"CPUs": "4"}))


def test_ratios__of_medians(results: Results) -> None:
    """Our median is divided by that of each other contestant, and a missing one leaves its place empty."""
    assert ratios(results).splitlines()[2].startswith("| alone | 0.500 | 2.00 |  |")


def test_faster__are_named(results: Results) -> None:
    """Each lock on ZooKeeper that is faster than ours is named with the scenario."""
    lines = faster(results).splitlines()
    assert lines[0] == "- kazoo is faster in: none of these scenarios."
    assert lines[1] == "- Curator is faster in: alone (2.00)."


def test_ceiling__last_step_below_twice_the_latency() -> None:
    """The ceiling ends where the latency has doubled, also if it is lower again later."""
    steps = [Step(1, 100, 1.0), Step(2, 180, 1.9), Step(4, 150, 2.0), Step(8, 400, 1.5)]
    assert ceiling_of(steps) == steps[1]
    assert ceiling_of([Step(1, 100, 1.0), Step(2, 90, 5.0)]) == Step(1, 100, 1.0)


def test_steps__medians() -> None:
    """A step has the medians of all rounds."""
    assert steps_of({"rate@1": [1, 9, 2], "latency@1": [3, 3, 4], "peak": [1]}) == [Step(1, 2, 3)]


def test_capacity__from_ceiling_and_requests(results: Results) -> None:
    """The estimates follow from the ceiling of 1,900 cycles of 3 requests, 6 requests for a turn, and 1 a second."""
    assert [line.split(" | ")[1].rstrip(" |") for line in capacity(results).splitlines()[2:]] == ["1,900", "950", "570"]


def test_blocks__of_results_without_figures() -> None:
    """A scenario that was not measured does not stop the others from being shown."""
    assert set(blocks(Results())) == set(BLOCKS)
    assert "### Ten thousand waiters\n" in figures(Results())


@pytest.mark.parametrize("names", [["x"], ["x", "y", "z"]])
def test_replace_blocks__that_differ(names: list[str]) -> None:
    """A block that is only in the page, or only generated, is an error that names it."""
    text = "".join(f"<!-- generated: {name} -->\n<!-- end of {name} -->\n" for name in ("x", "y"))
    with pytest.raises(ValueError, match=r"differ: [yz]$"):
        replace_blocks(text, dict.fromkeys(names, ""))


def test_page__has_the_figures_of_the_file() -> None:
    """The generated parts of the page are those that the committed figures give."""
    results = Results.load(RESULTS)
    for path, generated in ((PAGE, blocks(results)), (README, {"speed": speed(results)})):
        text = path.read_text(encoding="utf-8")
        assert replace_blocks(text, generated) == text
    assert FIGURES.read_text(encoding="utf-8") == figures(results)


def test_page__has_figures_in_generated_parts_only() -> None:
    """A measured figure in a sentence would be false after the next run: no sentence has a unit of one."""
    text = re.sub(r"<!-- generated.*?<!-- end of", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]* ?(?:µs|ms|s|MB|KiB|%|times|cycles|locks)\b.*", text) == []


def test_page__shows_all_plots() -> None:
    """Each plot is there for light and dark pages, and the page shows both."""
    names = {f"{name}-{theme.name}.svg" for name in ALL_PLOTS for theme in THEMES}
    assert {path.name for path in PLOTS.iterdir()} == names
    assert set(re.findall(r"performance/([\w-]+\.svg)", PAGE.read_text(encoding="utf-8"))) == names


def test_results__have_all_scenarios() -> None:
    """The committed figures are those of a whole run."""
    assert list(Results.load(RESULTS).figures) == list(SCENARIOS)


@pytest.mark.timeout(600)  # A first drawing reads all fonts.
def test_draw__twice_the_same(tmp_path: Path) -> None:
    """The same figures give the same files."""
    results = Results.load(RESULTS)
    for folder in ("first", "second"):
        draw(results, tmp_path / folder)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("first", "second")
    )
    assert len(first) == len(ALL_PLOTS) * len(THEMES)
    assert first == second


# Programs and rounds.


def test_load__as_words() -> None:
    """A load that was sent as words is the same."""
    load = Load(host="127.0.0.1", port=1, key="k", kind="mixed", contenders=3, processes=True, keys=2, limit=5)
    assert Load.parse(dict(word.split("=") for word in load.words().split())) == load


def test_cycles__mixed() -> None:
    """One turn of ten is a writer's, and contenders write at different turns."""
    load = Load(host="h", port=1, key="k", kind="mixed")
    made: list[str] = []

    def make(kind: str, _keys: Sequence[str]) -> object:
        return lambda: made.append(kind)

    places = []
    for contender in range(2):
        made.clear()
        for cycle in cycles_of(load, make, contender):  # type: ignore[arg-type]
            cycle()
        assert made.count("write") == 1
        assert made.count("read") == 9
        places.append(made.index("write"))
    assert places[0] != places[1]


def test_repeat__counts_what_ended_in_time() -> None:
    """The cycle that is under way at the end is done, and does not count."""
    outcome = repeat([lambda: None], 0.0, 0.0)
    assert (outcome.cycles, outcome.counted, outcome.last) == (1, 0, 0.0)


def test_outcome__without_a_cycle_in_time() -> None:
    """On a machine that is too busy for one cycle in a round, a round is as long as it takes."""
    late = Outcome(cycles=2, counted=0, last=5.0, end=9.0, longest=4.0)
    assert Outcome.merge([late, late]).figures(5.0) == {
        "cycles": 4, "counted": 4, "elapsed": 4.0, "longest": 4.0, "cpu": 0.0,
    }  # fmt: skip
    in_time = Outcome(cycles=3, counted=2, last=7.0, end=9.5, longest=2.0)
    figures = Outcome.merge([late, in_time], cpu=1.5).figures(5.0)
    assert figures == {"cycles": 5, "counted": 2, "elapsed": 2.0, "longest": 4.0, "cpu": 1.5}


def test_program__answers() -> None:
    """A command is answered by figures."""
    with Program([sys.executable, "-c", CHILD]) as program:
        assert program.ask("double", value=4) == {"value": 8.0}


def test_program__ends() -> None:
    """A program that has ended is an error, and starts again with the next command."""
    with Program([sys.executable, "-c", CHILD]) as program:
        with pytest.raises(ProgramError, match="has ended"):
            program.ask("die")
        assert not program.is_started
        assert program.ask("double", value=1) == {"value": 2.0}


def test_program__is_silent() -> None:
    """A program that does not answer in time is killed."""
    with Program([sys.executable, "-c", CHILD]) as program:
        with pytest.raises(ProgramError, match="no answer"):
            program.ask("nothing", timeout=0.1)
        assert not program.is_started


@pytest.mark.parametrize(
    ("spent", "turns"),
    [
        pytest.param([9, 5, 6, 5, 5], 5, id="compiles"),
        pytest.param([9, 5, 6, 4, 4, 4, 4], 7, id="compiles_again"),
        pytest.param([2.0**-number for number in range(20)], MAX_TURNS, id="always_compiles"),
    ],
)
def test_warm_up(spent: list[float], turns: int) -> None:
    """Programs are warm when their cycles have not become cheaper for three turns."""
    left = list(spent)
    WarmUp(0.1).together(lambda seconds: {"cpu": 10 * left.pop(0), "cycles": 10.0})
    assert len(spent) - len(left) == turns


class Begun(WarmUp):
    """What began: the programs that started, and how many were open when the team worked for the first time."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.programs: list[Program] = []
        self.at_first: list[int] = []

    def alone(self, program: Program) -> None:
        self.programs.append(program)

    def together(self, run: Callable[[float], Figures]) -> None:
        self.at_first.append(len(self.programs))


@contextmanager
def team() -> Iterator[tuple[Team, Begun]]:
    """Return a team of programs with a contender each, and what has begun."""
    begun = Begun()
    new = Team(lambda: Program([sys.executable, "-c", MEMBER]), is_apart=True, warm_up=begun)
    try:
        yield new, begun
    finally:
        new.end()


def test_team__as_one() -> None:
    """Each contender of a load has a program of its own; cycles and CPU are added up, and the last one counts."""
    load = Load(host="h", port=1, key="k", contenders=2, processes=True)
    with team() as (members, begun):
        for _ in range(2):
            members.open(load)
            ran = members.run(0.1)
            assert ran["elapsed"] == pytest.approx(2.0)
            assert (ran["cycles"], ran["counted"], ran["longest"], ran["cpu"]) == (4, 2, 1, 0.5)
            members.close()
        # They are started once.
        assert len(begun.programs) == 2
        assert begun.at_first == [2]


def test_team__after_a_failure() -> None:
    """If one program fails, no other keeps what was opened: all start again when they are needed."""
    with team() as (members, begun):
        members.open(Load(host="h", port=1, key="k", contenders=3, processes=True))
        with pytest.raises(ProgramError, match="has ended"):
            members.run(0.1)
        members.open(Load(host="h", port=1, key="k", contenders=2, processes=True))
        assert members.run(0.1)["cycles"] == 4
        assert len(begun.programs) == 5
        assert begun.at_first == [3, 5]


def test_delay__each_way_and_in_order() -> None:
    """The proxy passes on all bytes and the end of the stream, none of them before the delay is over."""
    seconds, sent = 0.05, b"abc" * 100_000
    with socket.create_server((LOOPBACK, 0)) as echo:
        port = echo.getsockname()[1]
        with (
            module("delay", str(port), str(seconds)) as proxy,
            socket.create_connection((LOOPBACK, int(proxy.ask("listen")["port"])), 30) as client,
        ):
            begin = time.monotonic()
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            server, _ = echo.accept()
            with server:
                received = b"".join(iter(lambda: server.recv(1 << 16), b""))
                assert time.monotonic() - begin >= seconds
                server.sendall(received)
            assert b"".join(iter(lambda: client.recv(1 << 16), b"")) == sent
            assert time.monotonic() - begin >= 2 * seconds


def test_turns__another_contestant_begins() -> None:
    """All contestants have a turn in each round, and another one is first in the next."""
    order = [(number, name) for number, name, _ in turns(dict.fromkeys("ab", lambda _: {}), 3)]
    assert order == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


@dataclass
class Failing:
    """A scenario of which one contestant fails in its first round."""

    name: str = "failing"
    max_rounds: int | None = None
    closed: list[bool] = field(default_factory=list)

    @contextmanager
    def open(self, _arena: Arena) -> Iterator[dict[str, Round]]:
        def fail_first(number: int) -> Figures:
            if not number:
                raise ProgramError("no answer")
            return {"time": 1.0}

        yield {"well": lambda _: {"time": 2.0}, "ill": fail_first}
        self.closed.append(True)


def test_measure__goes_on_after_a_failure() -> None:
    """A round that fails is reported, and all others count."""
    results, scenario = Results(), Failing()
    failures = measure(Arena(0), [scenario], [], 2, results)
    assert failures == ["failing, ill, round 1: ProgramError('no answer')"]
    assert results.figures == {"failing": {"well": {"time": [2.0, 2.0]}, "ill": {"time": [1.0]}}}
    assert scenario.closed == [True]


@pytest.mark.zookeeper
def test_bench__a_tiny_round() -> None:
    """The program measures contestants on real servers, and prints the figures that it was asked for."""
    command = [
        *(sys.executable, "-m", "benchmarks.peers", "--rounds", "1", "--warm-up", "0", "--seconds", "0.2"),
        *("--only", "alone", "threads-2", "alone-1ms", "--contestants", "ours", "raw", "redis-py"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "testproject")))}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=scaled(100), check=False
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert shown == [
        "alone, ours",
        "alone, redis-py",
        "alone, raw",
        "threads-2, ours",
        "threads-2, redis-py",
        "alone-1ms, ours",
        "alone-1ms, redis-py",
        "alone-1ms, raw",
    ]
    assert re.search(r"alone, raw\n.*\n.*\n.*\n.*\n  requests +3\.00\n", done.stdout)
