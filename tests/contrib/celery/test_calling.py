"""Locked tasks without a worker: decoration, direct calls, eager mode."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import celery._state
import pytest
from celery import Celery, Task, shared_task
from celery.canvas import Signature
from celery.local import PromiseProxy

from django_zklock import LockConflict, current_lock, zk_lock, zk_locked
from django_zklock.contrib.celery import RetryLater, install
from django_zklock.zk import holds
from tests.bystanders import Ensemble, Stranger
from tests.zk.runner import Runner

pytest_plugins = ["tests.configured"]
pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what Django's app does where Celery was imported before it; forget the tasks that Celery would share."""
    install()
    monkeypatch.setattr("django_zklock.contrib.celery.binding._everywhere", [])
    monkeypatch.setattr("celery._state._on_app_finalizers", set(celery._state._on_app_finalizers))  # type: ignore[attr-defined]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("calling", broker="memory://", set_as_current=False)
    yield app
    app.close()


def held_key() -> str:
    held = current_lock()
    assert held is not None
    return held.key


def work(number: int, *, flag: bool = False) -> str:
    """Do the work."""
    return held_key()


def bound(self: Any, number: int, *, flag: bool = False) -> str:
    """Do the work."""
    return held_key()


def nothing() -> None: ...


# Decoration.


@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
@pytest.mark.parametrize("finalized", [True, False])
@pytest.mark.parametrize(("function", "bind"), [(work, False), (bound, True)])
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (Exception,)}], ids=["plain", "autoretry"])
def test_app_task__stays_a_task(
    app: Celery, ensemble: Ensemble, above: bool, finalized: bool, function: Any, bind: bool, options: dict[str, Any]
) -> None:
    """Name, docstring and checked arguments of a task survive, and it holds: called, applied, before and after."""
    if finalized:
        app.finalize()
    locked, task_of = zk_locked("{number}"), app.task(name="t", bind=bind, **options)
    task: Any = locked(task_of(function)) if above else task_of(locked(function))
    if above and not finalized:
        assert type(task) is PromiseProxy
        assert not task.__evaluated__()
    assert task.name == "t"
    assert task.__doc__ == "Do the work."
    assert task(1) == "1"
    assert task(number=2, flag=True) == "2"
    assert task.apply((3,)).get() == "3"
    assert str(inspect.signature(task.run)) == "(number: 'int', *, flag: 'bool' = False) -> 'str'"
    assert isinstance(task.s(1), Signature)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        task.apply_async()
    with pytest.raises(TypeError, match="unexpected keyword"):
        task.apply_async((1,), {"nobody": 1})
    assert current_lock() is None


def test_shared_task__in_every_app(ensemble: Ensemble) -> None:
    """A shared task is locked in every app that has it, finalized before or after the decoration, and once in each."""
    apps = [Celery(f"shared{n}", set_as_current=False) for n in range(3)]
    apps[0].finalize()

    @zk_locked("{number}", reentrant=False)
    @shared_task(name="calling.shared")
    def task(number: int) -> str:
        return held_key()

    apps[1].finalize()
    for app in apps:
        for _ in range(2):
            assert app.tasks["calling.shared"](1) == "1"
        app.close()


def test_app_task__copied_to_other_apps(ensemble: Ensemble) -> None:
    """An app's task that Celery copies to other apps is locked there too."""
    first, second = (Celery(f"copy{n}", set_as_current=False) for n in range(2))

    @zk_locked("{number}", reentrant=False)
    @first.task(name="calling.copied")
    def task(number: int) -> str:
        return held_key()

    assert second.tasks["calling.copied"](1) == "1"
    assert first.tasks["calling.copied"](2) == "2"
    assert task(3) == "3"
    first.close()
    second.close()


def test_other_task_of_that_name__is_left_alone(ensemble: Ensemble) -> None:
    """Another app's own task of the same name is not locked."""
    first, second = (Celery(f"other{n}", set_as_current=False) for n in range(2))

    @second.task(name="calling.same", shared=False)
    def plain() -> Any:
        return current_lock()

    @zk_locked("k")
    @first.task(name="calling.same", shared=False)
    def task() -> str:
        return held_key()

    assert second.tasks["calling.same"]() is None
    assert task() == "k"
    first.close()
    second.close()


def test_two_locks_above__both_hold(app: Celery, ensemble: Ensemble) -> None:
    """Two decorators above a task mean two locks."""

    @zk_locked("c")
    @zk_locked("b")
    @zk_locked("a")
    @app.task
    def task() -> list[str]:
        return [held.key for held in holds.stack()]

    assert task() == ["c", "b", "a"]


def test_many_locks_above__in_one_order(ensemble: Ensemble) -> None:
    """Locks on a shared task are taken from the outermost to the innermost, whatever order Celery finalizes in."""
    keys = [f"k{number}" for number in range(12)]

    @shared_task(name="calling.many")
    def task() -> list[str]:
        return [held.key for held in holds.stack()]

    for key in keys:
        zk_locked(key)(task)
    with Celery("many", set_as_current=False) as app:
        assert app.tasks["calling.many"]() == keys[::-1]


@pytest.mark.parametrize("kind", ["app", "shared"])
def test_bare_use__above_a_task(app: Celery, kind: str) -> None:
    """Bare `@zk_locked` above a task is refused, and the task is not made to find out."""
    maker = app.task if kind == "app" else shared_task
    task = maker(name=f"calling.bare_{kind}")(work)
    with pytest.raises(TypeError, match="needs the key of the lock"):
        zk_locked(task)
    finalized: bool = app.finalized  # type: ignore[attr-defined]
    assert not finalized


def test_unknown_argument__above_a_task(app: Celery) -> None:
    """A template over an argument that the task does not have is refused when the task is made."""
    app.finalize()
    with pytest.raises(ValueError, match="names 'nobody', which is no argument of work; it has: number, flag"):
        zk_locked("{nobody}")(app.task(name="calling.unknown")(work))


def test_class__without_a_body(app: Celery) -> None:
    """A class of tasks that leaves `run` to others has nothing to lock, and is refused."""

    class Base(Task):  # type: ignore[type-arg]
        pass

    with pytest.raises(TypeError, match=r"Base has no run\(\) to lock"):
        zk_locked("k")(Base)


def test_class__inherited_body(app: Celery, ensemble: Ensemble) -> None:
    """A class whose base has the body is locked, and the base is not."""

    class Base(Task):  # type: ignore[type-arg]
        name = "calling.base"

        def run(self) -> bool:
            return current_lock() is not None

    @zk_locked("k")
    class Locked(Base):
        name = "calling.locked"

    assert app.register_task(Locked())() is True
    assert app.register_task(Base())() is False


# Calls and eager mode.


def test_direct_call__policies(app: Celery, stranger: Stranger) -> None:
    """A direct call follows the policies in place; with nowhere to go back to, `retry` fails with the conflict."""
    stranger.take("k")
    made: Any = [
        app.task(name=f"calling.{policy}")(zk_locked("k", on_conflict=policy)(nothing))
        for policy in ("skip", "raise", "retry")
    ]
    assert made[0]()["zklock"] == "skipped"
    for task in made[1:]:
        with pytest.raises(LockConflict, match="held by label the stranger"):
            task()


def test_eager__conflicts(app: Celery, stranger: Stranger) -> None:
    """In eager mode a conflict is the result, not retried by autoretry, and `retry` fails with it."""
    stranger.take("k")
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        zk_lock("k").acquire(0)

    for name, body in {
        "raise": zk_locked("k", on_conflict="raise")(nothing),
        "retry": zk_locked("k", on_conflict="retry")(nothing),
        "inside": attempt,
    }.items():
        task: Any = app.task(name=f"calling.eager_{name}", autoretry_for=(Exception,), default_retry_delay=0)(body)
        result = task.apply()
        assert result.state == "FAILURE"
        assert "lock 'k' is" in str(result.result)
    assert attempts == [1]


def test_eager__names_the_task(app: Celery, ensemble: Ensemble) -> None:
    """In eager mode the holder is the task, with its id."""

    @app.task(name="calling.eager")
    @zk_locked("k")
    def task() -> str:
        with pytest.raises(LockConflict) as caught:
            Runner(zk_locked("k", on_conflict="raise")(lambda: None)).result()
        return str(caught.value.holder)

    assert task.apply(task_id="4711").get().startswith("task calling.eager [4711] (pid ")
    assert task().startswith("function ")


@pytest.mark.parametrize(
    "options",
    [
        {"max_wait": 0},
        {"delay": 0},
        {"delay": -1},
        {"max_delay": 0.5},
        {"delay": 10, "max_delay": 5},
    ],
)
def test_retry_later__bad_options(options: dict[str, float]) -> None:
    """Delays that make no sense are refused."""
    with pytest.raises(ValueError, match="RetryLater needs max_wait > 0 and 0 < delay <= max_delay"):
        RetryLater(**options)


@pytest.mark.parametrize("name", ["max_wait"])
def test_retry_later__wrong_type(name: str) -> None:
    """A time that is none is refused."""
    with pytest.raises(TypeError, match="max_wait must be seconds"):
        RetryLater(**{name: "5"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_wait must not be negative"):
        RetryLater(**{name: -1})


def test_retry_later__is_a_policy() -> None:
    """The name "retry" and an object of the class are both accepted."""
    assert zk_locked("k", on_conflict="retry").on_conflict == RetryLater()
    assert zk_locked("k", on_conflict=RetryLater(max_wait=5)).on_conflict == RetryLater(max_wait=5)
