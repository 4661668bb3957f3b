"""Locked tasks without a worker: decoration, direct calls, eager mode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import celery._state
import pytest
from celery import Celery, Task, shared_task
from celery.app.trace import build_tracer
from celery.canvas import Signature
from celery.contrib.django.task import DjangoTask
from celery.local import PromiseProxy
from celery.result import allow_join_result
from django.db import transaction
from django.utils.translation import gettext_lazy

from django_zklock import (
    LockConflict,
    LockTimeout,
    ZkLockError,
    ZooKeeperUnavailable,
    current_lock,
    zk_lock,
    zk_locked,
)
from django_zklock.api import current_work
from django_zklock.contrib.celery import RetryLater, install, tasks
from django_zklock.locked_call import locked_call_of
from django_zklock.zk.held import held_stack
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]
pytestmark = [pytest.mark.celery, pytest.mark.oldest]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the integration like Django's app; remove the tasks that Celery would share."""
    install()
    monkeypatch.setattr("django_zklock.contrib.celery.tasks._decorators", [])
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
    """A task keeps name, docstring and checked arguments, and holds its lock: called, applied, before and after."""
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


@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize("base", [None, DjangoTask])
def test_sent__without_a_value_of_the_key(app: Celery, above: bool, bind: bool, base: Any) -> None:
    """A value that the key needs and that is missing is an error where the task is sent, however that is written."""

    def unbound(number: Any, shop: str | None = None) -> None: ...

    def with_self(self: Any, number: Any, shop: str | None = None) -> None: ...

    factory: Any = app.task
    locked, task_of = zk_locked("{number}:{shop!r}"), factory(name="t", bind=bind, base=base)
    function: Any = with_self if bind else unbound
    task: Any = locked(task_of(function)) if above else task_of(locked(function))
    app.finalize()
    sends: list[Callable[[], object]] = [
        lambda: task.delay(None, "main"),
        lambda: task.delay("", shop="main"),
        lambda: task.apply_async((1,)),
        lambda: task.apply_async(kwargs={"number": 1, "shop": None}),
        lambda: task.s(None).delay("main"),
        lambda: task.si(1, None).apply_async(),
    ]
    if base is not None:
        sends += [lambda: task.delay_on_commit(None, "main"), lambda: task.apply_async_on_commit((None, "main"))]
    for send in sends:
        with pytest.raises(
            ValueError, match=r"task t is not sent: lock key '{number}:{shop!r}': a value .* must not be"
        ):
            send()
    with pytest.raises(TypeError, match="number"):
        task.delay()
    several: list[tuple[Any, str]] = [(1, "main"), (0, ""), ([], "main")]
    for arguments in several:
        assert task.delay(*arguments).id


@pytest.mark.parametrize("value", [gettext_lazy("Yes"), [gettext_lazy("Yes")], {"a": (gettext_lazy("Yes"),)}], ids=type)
def test_sent__lazy_text(app: Celery, value: Any) -> None:
    """A lazy text would be sent in the language that is active here."""

    @app.task(name="t")
    @zk_locked("{number}")
    def work(number: Any) -> None: ...

    app.finalize()
    with pytest.raises(ValueError, match=r"task t is not sent: .* a lazy text depends on the language"):
        work.delay(value)
    assert work.delay([["Yes"], {}]).id


def test_sent__at_the_commit(app: Celery, ensemble: Ensemble, transactional_db: None) -> None:
    """What is to be sent at the commit is checked before, so that the transaction is rolled back."""
    sent: list[object] = []

    @app.task(name="t", base=DjangoTask)
    @zk_locked("{number}")
    def work(number: int | None) -> None:
        sent.append(number)

    app.conf.task_always_eager = True
    app.finalize()

    @transaction.atomic
    def order() -> None:
        transaction.on_commit(lambda: sent.append("other"))
        work.delay_on_commit(None)

    with pytest.raises(ValueError, match="task t is not sent"):
        order()
    with transaction.atomic():
        work.delay_on_commit(1)
        work.apply_async_on_commit(kwargs={"number": 2}, priority=3)
        assert sent == []
    assert sent == [1, 2]


class Completing(Task):  # type: ignore[type-arg]
    """A class of tasks that completes the arguments: in the worker."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*(args or (1,)), **kwargs)


class CompletingFirst(Task):  # type: ignore[type-arg]
    """And one that does so when a task is sent."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return super().apply_async((1,), kwargs, **options)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("{number}", {"typing": False}),
        ("{number}", {"base": Completing}),
        ("{number}", {"base": CompletingFirst}),
        (lambda number: f"k:{number}", {}),
    ],
    ids=["no typing", "own call", "own apply_async", "callable"],
)
def test_sent__what_cannot_be_known(app: Celery, key: Any, options: dict[str, Any]) -> None:
    """Where the body may be called with other arguments, and for a callable, the worker decides."""

    @app.task(name="t", **options)
    @zk_locked(key)
    def work(number: int | None) -> None: ...

    app.finalize()
    assert work.delay(None).id


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
    """A task that Celery copies to other apps is locked there too."""
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
    """A different task of the same name in another app is not locked."""
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


async def acting(number: int) -> str:
    raise AssertionError("the body has run")


ASYNC_TASKS: dict[str, Callable[[Celery], Any]] = {
    "lock above app.task": lambda app: zk_locked("k:{number}")(app.task(acting)),
    "lock below app.task": lambda app: app.task(zk_locked("k:{number}")(acting)),
    "lock above shared_task": lambda app: zk_locked("k:{number}")(shared_task(name="calling.above")(acting)),
    "lock below shared_task": lambda app: shared_task(name="calling.below")(zk_locked("k:{number}")(acting)),
    "lock below autoretry": lambda app: app.task(autoretry_for=(Exception,))(zk_locked("k:{number}")(acting)),
}


@pytest.mark.parametrize("make", ASYNC_TASKS.values(), ids=ASYNC_TASKS)
def test_async_task__refused(app: Celery, ensemble: Ensemble, make: Callable[[Celery], Any]) -> None:
    """A locked task whose body is async fails at each call, and says why: Celery would never await the body."""
    name = make(app).name
    app.finalize()
    task = app.tasks[name]
    with pytest.raises(TypeError, match=r"its body is async, and Celery never awaits it"):
        task(1)
    with pytest.raises(TypeError, match=r"its body is async, and Celery never awaits it"):
        task.apply((1,)).get()


def test_async_task__class(ensemble: Ensemble) -> None:
    """A class of tasks with an async body is refused when it is decorated."""

    class Acting(Task):  # type: ignore[type-arg]
        async def run(self, number: int) -> str:
            return await acting(number)

    with pytest.raises(TypeError, match=r"cannot lock the task .*Acting: its body is async"):
        zk_locked("k:{number}")(Acting)


@pytest.mark.parametrize("kind", ["app", "shared"])
def test_many_locks_above__in_one_order(app: Celery, ensemble: Ensemble, kind: str) -> None:
    """Locks above a task are acquired from the outermost to the innermost, in whichever order Celery finalizes."""
    keys = [f"k{number}" for number in range(12)]

    def body() -> list[str]:
        return [held.key for held in held_stack()]

    maker: Any = app.task if kind == "app" else shared_task
    task = maker(name=f"calling.many_{kind}")(body)
    for key in keys:
        zk_locked(key)(task)
    assert app.tasks[f"calling.many_{kind}"]() == keys[::-1]


@pytest.mark.parametrize("kind", ["app", "shared"])
def test_bare_use__above_a_task(app: Celery, kind: str) -> None:
    """Bare `@zk_locked` above a task is refused, and the task's proxy is not evaluated."""
    maker = app.task if kind == "app" else shared_task
    task = maker(name=f"calling.bare_{kind}")(work)
    with pytest.raises(TypeError, match="needs the key of the lock"):
        zk_locked(task)
    finalized: bool = app.finalized  # type: ignore[attr-defined]
    assert not finalized


def test_unknown_argument__above_a_task(app: Celery) -> None:
    """A template with an argument that the task does not have is refused when the task is made."""
    app.finalize()
    with pytest.raises(ValueError, match="names 'nobody', which is no argument of work; it has: number, flag"):
        zk_locked("{nobody}")(app.task(name="calling.unknown")(work))


def test_proxy__of_an_agent(app: Celery, ensemble: Ensemble) -> None:
    """A lock above what an agent has put in a task's place goes into the task, however the task is sent."""
    task = app.task(name="calling.proxied")(work)
    app.finalize()

    class Proxied:
        """What seems to be the task."""

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            return Task

        def __getattr__(self, name: str) -> Any:
            return getattr(app.tasks["calling.proxied"], name)

    proxied = Proxied()
    assert zk_locked("{number}")(proxied) is proxied
    assert task(1) == "1"
    assert app.tasks["calling.proxied"].apply((2,)).get() == "2"


def test_class__without_a_body(app: Celery) -> None:
    """A class of tasks without a `run` of its own is refused."""

    class Base(Task):  # type: ignore[type-arg]
        pass

    with pytest.raises(TypeError, match=r"Base has no run\(\) to lock"):
        zk_locked("k")(Base)


def test_class__inherited_body(app: Celery, ensemble: Ensemble) -> None:
    """A class that inherits its body is locked, and its base is not."""

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


def test_direct_call__policies(app: Celery, other_client: OtherClient) -> None:
    """A direct call follows the policies; without a message to send back, `retry` fails with the conflict."""
    other_client.take("k")
    made: Any = [
        app.task(name=f"calling.{policy}")(zk_locked("k", on_conflict=policy)(nothing))
        for policy in ("skip", "raise", "retry")
    ]
    assert made[0]()["zklock"] == "skipped"
    for task in made[1:]:
        with pytest.raises(LockConflict, match="held by label the other client"):
            task()


def test_eager__conflicts(app: Celery, other_client: OtherClient) -> None:
    """In eager mode a conflict is the result, not retried by autoretry, and `retry` fails with it."""
    other_client.take("k")
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


@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
@pytest.mark.parametrize("own", [{}, {"dont_autoretry_for": (KeyError,)}], ids=["none", "own"])
def test_autoretry__excludes_conflicts(
    app: Celery, other_client: OtherClient, above: bool, own: dict[str, Any]
) -> None:
    """Celery's `dont_autoretry_for` excludes conflicts from retries, in addition to the task's own errors."""
    other_client.take("k")
    failed: list[Any] = []

    def on_failure(self: Any, error: Exception, *_facts: Any) -> None:
        failed.append((type(error), self.request.called_directly))

    options = {"autoretry_for": (Exception,), "on_failure": on_failure, "default_retry_delay": 0, **own}
    locked: Any = zk_locked("k", on_conflict="raise")
    task_of: Any = app.task(name="calling.excluding", bind=False, **options)
    task: Any = locked(task_of(nothing)) if above else task_of(locked(nothing))
    for _ in range(2):
        assert task.apply().state == "FAILURE"
    assert failed == [(LockConflict, False)] * 2


@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({"autoretry_for": (Exception,), "dont_autoretry_for": (KeyError,)}, KeyError, 1),
        ({"autoretry_for": (Exception,), "dont_autoretry_for": (KeyError,)}, ValueError, 3),
        ({"autoretry_for": (LockConflict,)}, LockConflict, 3),
        ({"autoretry_for": (ZkLockError,)}, LockConflict, 3),
        ({"autoretry_for": (Exception, LockTimeout)}, LockConflict, 3),
    ],
)
def test_autoretry__as_the_task_says(
    app: Celery, options: dict[str, Any], error: type[Exception], attempts: int
) -> None:
    """The task's own `autoretry_for` and `dont_autoretry_for` are kept."""
    made = []

    @app.task(name="calling.naming", max_retries=2, default_retry_delay=0, **options)
    def attempt() -> None:
        made.append(1)
        raise error("k")

    assert attempt.apply().state == "FAILURE"
    assert len(made) == attempts


def test_autoretry__below_another_wrapper(app: Celery, other_client: OtherClient) -> None:
    """Other wrappers around a task's body, such as those of monitoring tools, do not hide its autoretry."""
    other_client.take("k")
    body = zk_locked("k", on_conflict="raise")(nothing)
    task: Any = app.task(name="calling.measured", autoretry_for=(Exception,), default_retry_delay=0)(body)
    run = task.run

    @functools.wraps(run)
    def measured(*args: Any) -> Any:
        return run(*args)

    task.run = measured
    assert isinstance(task.apply().result, LockConflict)


def test_autoretry__unknown(app: Celery, other_client: OtherClient, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown implementation of autoretry is logged, and the task runs as this Celery runs it."""
    other_client.take("k")
    task: Any = app.task(name="calling.unknown")(zk_locked("k", on_conflict="raise")(nothing))
    task._orig_run = task.run
    assert isinstance(task.apply().result, LockConflict)
    assert "event=autoretry_unknown task=calling.unknown consequence=conflicts_are_retried" in caplog.text


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


def test_delivered__names_the_task_of_the_worker(app: Celery) -> None:
    """In a task that a worker was given the work is that task, whatever it calls: the next delivery has the same id."""

    @app.task(name="inner")
    def inner() -> str:
        return str(current_work())

    @app.task(name="outer", bind=True)
    def outer(self: Any, again: bool = True) -> list[str]:
        return [inner(), inner.apply(task_id="random").get(), *(self(again=False) if again else ())]

    tracer: Any = build_tracer(outer.name, outer, app=app, eager=False)
    request = {"id": "4711", "is_eager": False, "hostname": "celery@web1", "correlation_id": "4711"}
    with allow_join_result():
        result = tracer("4711", (), {}, request=request).retval
    assert [each.partition(" (")[0] for each in result] == ["task outer [4711]"] * 4


@pytest.mark.parametrize(
    "options",
    [{"max_wait": 0}, {"delay": 0}, {"max_delay": 0.5}],
)
def test_retry_later__bad_options(options: dict[str, float]) -> None:
    """Invalid delays are refused."""
    with pytest.raises(ValueError, match="RetryLater needs max_wait > 0 and 0 < delay <= max_delay"):
        RetryLater(**options)


def test_retry_later__wrong_type() -> None:
    """A value of the wrong type is refused."""
    with pytest.raises(TypeError, match="max_wait must be seconds"):
        RetryLater(max_wait="5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_wait must not be negative"):
        RetryLater(max_wait=-1)


def test_retry_later__without_zookeeper(app: Celery, ensemble: Ensemble) -> None:
    """Without a message to send back, a direct call and eager mode fail like with "raise"."""
    task: Any = app.task(name="calling.outage", autoretry_for=(LockConflict,))(
        zk_locked("k", using="absent", on_unavailable="retry")(nothing)
    )
    with pytest.raises(ZooKeeperUnavailable, match=r"lock 'k': .* is it running"):
        task()
    assert isinstance(task.apply().result, ZooKeeperUnavailable)


def policies(**options: Any) -> tuple[object, object]:
    """Return the policies of a decorated function for a conflict and without ZooKeeper."""
    call = locked_call_of(zk_locked("k", **options)(nothing))
    assert call is not None
    return call.on_conflict, call.on_unavailable


def test_retry_later__for_outages() -> None:
    """Without ZooKeeper "retry" has the same budget and delays as for conflicts."""
    later = RetryLater(max_wait=5)
    assert policies(on_unavailable="retry") == ("wait", RetryLater())
    assert policies(on_conflict="skip", on_unavailable="retry") == ("skip", RetryLater())
    assert policies(on_conflict=later, on_unavailable="retry") == (later, later)
    assert policies(on_conflict=later, on_unavailable=RetryLater()) == (later, RetryLater())


def test_retry_later__is_a_policy() -> None:
    """The name "retry" and an object of the class are both accepted."""
    assert policies(on_conflict="retry")[0] == RetryLater()
    assert policies(on_conflict=RetryLater(max_wait=5))[0] == RetryLater(max_wait=5)


@pytest.mark.parametrize("queries", ["key", "using"])
def test_message_key__queries_the_database(monkeypatch: pytest.MonkeyPatch, queries: str) -> None:
    """A connection that was opened for a key, or for its ensemble, is closed: children would inherit it."""
    database = SimpleNamespace(alias="default", connection=None)
    database.close = lambda: setattr(database, "connection", None)
    monkeypatch.setattr(tasks, "databases", SimpleNamespace(all=lambda **_: [database]))
    seen = []

    def query(text: str) -> str:
        database.connection = object()
        seen.append(text)
        return "default"

    @zk_locked(query if queries == "key" else "{name}", using=query if queries == "using" else "default")
    def body(name: str) -> None: ...

    call, own = tasks.outermost_lock(SimpleNamespace(run=body))
    assert call is not None
    request = SimpleNamespace(args=["a"], kwargs={})
    assert tasks.message_key(call, request, own) == ("default" if queries == "key" else "a", "default")
    assert (seen, database.connection) == (["a"], None)
