"""The targets and options that `@zk_locked` accepts and refuses, and what it leaves unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import operator
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.http import HttpRequest, HttpResponse
from django.template import Context, Template
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View

from django_zklock import Busy, Conflict, LockConflict, current_lock, key_template, zk_lock, zk_locked
from django_zklock.decorators import Locked
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner

pytestmark = [pytest.mark.nocelery, pytest.mark.oldest]

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]


def held_key() -> str:
    """Return the key that the caller holds."""
    held = current_lock()
    assert held is not None
    held.check()
    return held.key


@zk_locked("decorated:{number}")
def decorated(number: int, /, name: str = "x", *, flag: bool = False) -> tuple[str, int, str, bool]:
    """Say what was given."""
    return held_key(), number, name, flag


# What stays.


def test_function__looks_as_before() -> None:
    """Name, docstring, module, annotations and signature of a function stay, for every function of `inspect`."""
    assert decorated.__name__ == "decorated"
    assert decorated.__qualname__ == "decorated"
    assert decorated.__module__ == __name__
    assert decorated.__doc__ == "Say what was given."
    assert decorated.__annotations__["name"] == "str"
    assert str(inspect.signature(decorated)).startswith(
        "(number: 'int', /, name: 'str' = 'x', *, flag: 'bool' = False)"
    )
    assert inspect.getfullargspec(decorated).args == ["number", "name"]
    assert inspect.getfullargspec(decorated).kwonlyargs == ["flag"]


# What is locked.


def test_function__holds(ensemble: Ensemble) -> None:
    """A function runs under the lock of its arguments and returns its result; then the lock is free."""
    assert decorated(1, "y", flag=True) == ("decorated:1", 1, "y", True)
    assert current_lock() is None
    ensemble.wait_empty("decorated:1")


def test_coroutine_function__holds(ensemble: Ensemble) -> None:
    """A coroutine function stays one, and runs under the lock, which does not pass to the tasks that it makes."""

    @zk_locked("async:{number}")
    async def work(number: int) -> tuple[str, Any]:
        async def child() -> Any:
            return current_lock()

        return held_key(), await asyncio.create_task(child())

    assert inspect.iscoroutinefunction(work)
    assert str(inspect.signature(work)) == "(number: 'int') -> 'tuple[str, Any]'"
    assert asyncio.run(work(5)) == ("async:5", None)
    ensemble.wait_empty("async:5")


class Service:
    """Methods of every kind."""

    name = "main"

    @zk_locked("{self.name}:{number}")
    def method(self, number: int) -> str:
        return held_key()

    @zk_locked("{self.name}:{number}")
    async def amethod(self, number: int) -> str:
        return held_key()

    @classmethod
    @zk_locked("{cls.name}:inner")
    def inner_classmethod(cls) -> str:
        return held_key()

    @zk_locked("{cls.name}:outer")
    @classmethod
    def outer_classmethod(cls) -> str:
        return held_key()

    @staticmethod
    @zk_locked("static:{number}")
    def inner_staticmethod(number: int) -> str:
        return held_key()

    @zk_locked("static:{number}")
    @staticmethod
    def outer_staticmethod(number: int) -> str:
        return held_key()


def test_methods__hold(ensemble: Ensemble) -> None:
    """Methods, classmethods and staticmethods are locked, with the decorator above or below."""
    service = Service()
    assert service.method(1) == "main:1"
    assert Service.method(service, number=2) == "main:2"
    assert asyncio.run(service.amethod(3)) == "main:3"
    assert Service.inner_classmethod() == service.inner_classmethod() == "main:inner"
    assert Service.outer_classmethod() == service.outer_classmethod() == "main:outer"
    assert Service.inner_staticmethod(1) == service.inner_staticmethod(1) == "static:1"
    assert Service.outer_staticmethod(2) == service.outer_staticmethod(2) == "static:2"
    assert isinstance(inspect.getattr_static(Service, "outer_classmethod"), classmethod)
    assert isinstance(inspect.getattr_static(Service, "outer_staticmethod"), staticmethod)


def test_stacked__both_hold(ensemble: Ensemble) -> None:
    """Two decorators mean two locks, held together, each with the arguments of the function."""

    @zk_locked("outer:{number}")
    @zk_locked("inner:{number}")
    def work(number: int) -> tuple[Any, Any]:
        return current_lock("outer:1"), current_lock("inner:1")

    outer, inner = work(1)
    assert outer.key == "outer:1"
    assert inner.key == "inner:1"


# Management commands. This module is not in a `management.commands` package, as a base class would not be.


class HandleCommand(BaseCommand):
    @zk_locked("nightly", on_conflict="skip")
    def handle(self, *args: Any, **options: Any) -> str:
        """Do the work."""
        return f"done under {held_key()}"


@zk_locked("{options[verbosity]}:nightly", on_conflict="skip", on_unavailable="skip")
class ClassCommand(BaseCommand):
    """Do the work at night."""

    help = "Do the work"

    def handle(self, *args: Any, **options: Any) -> str:
        return f"done under {held_key()}"


@zk_locked("nightly", using="absent", on_unavailable="skip")
class AbsentCommand(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        raise AssertionError


class Heir(HandleCommand):
    """Inherits a locked handle."""


@pytest.mark.parametrize(
    ("command", "key"), [(HandleCommand, "nightly"), (ClassCommand, "1:nightly"), (Heir, "nightly")]
)
def test_command__holds(ensemble: Ensemble, command: type[BaseCommand], key: str) -> None:
    """A command runs under its lock, decorated on its class, on its handle, or on that of its base class."""
    out = io.StringIO()
    call_command(command(), stdout=out)
    assert out.getvalue() == f"done under {key}\n"


def test_command__class_stays() -> None:
    """The decorator returns the decorated class itself."""
    assert inspect.isclass(ClassCommand)
    assert ClassCommand.__doc__ == "Do the work at night."
    assert ClassCommand.handle.__name__ == "handle"


@pytest.mark.parametrize(
    ("command", "key"), [(HandleCommand, "nightly"), (ClassCommand, "1:nightly"), (Heir, "nightly")]
)
def test_command__skipped(other_client: OtherClient, command: type[BaseCommand], key: str) -> None:
    """A skipped command prints one line that names the lock and its holder, and ends without an error."""
    held = other_client.take(key)
    out = io.StringIO()
    instance = command(stdout=out)
    instance.run_from_argv(["manage.py", "nightly", "--no-color"])
    assert out.getvalue().startswith(f"Skipped: lock {key!r}: held by label the other client (pid ")
    assert out.getvalue().count("\n") == 1
    held.check()


def test_command__skipped_without_zookeeper(ensemble: Ensemble) -> None:
    """A command that skips without ZooKeeper says so, and does not claim that the lock is held."""
    out = io.StringIO()
    call_command(AbsentCommand(), stdout=out)
    assert out.getvalue() == "Skipped: lock 'nightly': ZooKeeper cannot be reached.\n"


def test_command__named_as_holder(other_client: OtherClient) -> None:
    """The error of a waiter names the command that holds the lock."""

    class Nested(BaseCommand):
        __module__ = "shop.management.commands.reindex"

        @zk_locked("nightly")
        def handle(self, *args: Any, **options: Any) -> str:
            with pytest.raises(LockConflict) as caught:
                Runner(zk_locked("nightly", on_conflict="raise")(lambda: None)).result()
            return str(caught.value.holder)

    out = io.StringIO()
    call_command(Nested(), stdout=out)
    assert out.getvalue().startswith("command reindex (pid ")


def test_handle__of_something_else(other_client: OtherClient) -> None:
    """A method that is called handle, of an object that is no command, has the usual result when it is skipped."""

    class Handler:
        @zk_locked("handler", on_conflict="skip")
        def handle(self) -> None:
            raise AssertionError

    other_client.take("handler")
    result: Any = Handler().handle()
    assert result["zklock"] == "skipped"


# django.tasks


if django.VERSION >= (6, 0):
    from django.tasks import TaskResultStatus, task

    @task
    @zk_locked("django-task:{number}")
    def below(number: int) -> str:
        return held_key()

    @zk_locked("django-task:{number}")
    @task(priority=5)
    def above(number: int) -> str:
        """Do the work."""
        return held_key()

    @zk_locked("django-task:{number}")
    @task(takes_context=True)
    def with_context(context: Any, number: int) -> str:
        return f"{context.attempt}:{held_key()}"

    @task
    @zk_locked("django-task:{number}")
    async def coroutine(number: int) -> str:
        return held_key()

    @zk_locked("django-task:{number}", on_conflict="skip")
    @task
    def skipping(number: int) -> str:
        return held_key()

    @zk_locked("django-task:{number}", on_conflict="raise")
    @task
    def raising(number: int) -> str:
        return held_key()

    @pytest.mark.parametrize(
        ("task", "gives"),
        [
            (below, "django-task:1"),
            (above, "django-task:1"),
            (with_context, "1:django-task:1"),
            (coroutine, "django-task:1"),
        ],
    )
    def test_django_task__holds(ensemble: Ensemble, task: Any, gives: str) -> None:
        """A Django task is locked above and below `@task`, enqueued to the immediate backend or called."""
        result = task.enqueue(1)
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, gives), result.errors
        if not task.takes_context:
            assert task.call(1) == gives

    def test_django_task__stays_a_task() -> None:
        """What the decorator gives is the task, with its options, name and docstring."""
        assert above.priority == 5
        assert above.name == "above"
        assert above.func.__doc__ == "Do the work."
        assert above.module_path == f"{__name__}.above"

    def test_django_task__conflict(other_client: OtherClient) -> None:
        """A skipped task's result says so, and a conflict fails the task."""
        other_client.take("django-task:2")
        result = skipping.enqueue(2)
        assert result.status is TaskResultStatus.SUCCESSFUL
        skipped: Any = result.return_value
        assert skipped["zklock"] == "skipped"
        assert skipped["holder"].startswith("label the other client")
        failed = raising.enqueue(2)
        assert failed.status is TaskResultStatus.FAILED
        assert failed.errors[0].exception_class is LockConflict


# What is refused at decoration.


async def choose_later(_key: str) -> str:
    return "default"


class ChoosesLater:
    async def __call__(self, _key: str) -> str:
        return "default"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"timeout": -1}, ValueError, "timeout must not be negative, got -1; None waits for ever, 0 tries once"),
        ({"timeout": "5"}, TypeError, "timeout must be seconds, a timedelta or None, got '5'"),
        (
            {"on_conflict": "explode"},
            ValueError,
            "on_conflict must be one of 'wait', 'skip', 'raise', 'retry', 'coalesce', got",
        ),
        ({"on_conflict": ["wait"]}, ValueError, "on_conflict must be one of"),
        (
            {"on_lost": "explode"},
            ValueError,
            "on_lost must be one of 'raise', 'interrupt', 'terminate', 'ignore', got 'explode'",
        ),
        (
            {"on_unavailable": "explode"},
            ValueError,
            "on_unavailable must be one of 'raise', 'skip', 'run', 'retry', got 'explode'",
        ),
        ({"reentrant": 1}, ValueError, "reentrant must be one of True, False, got 1"),
        (
            {"using": None},
            TypeError,
            "using must be the name of an alias in ZKLOCK, or a function of the key, got None",
        ),
        ({"using": choose_later}, TypeError, "is async: it would never be awaited"),
        ({"using": ChoosesLater()}, TypeError, "is async: it would never be awaited"),
        ({"using": lambda: "default"}, TypeError, "is called with the key alone: too many positional arguments"),
        ({"mode": "shared"}, ValueError, "mode must be one of 'exclusive', 'read', 'write', got 'shared'"),
        ({"limit": 0}, TypeError, "limit is how many may hold at once, .* as in limit=4, got 0"),
        ({"mode": "read", "limit": 2}, TypeError, "leave out mode='read' or the limit"),
        ({"wait": 5}, TypeError, "unexpected keyword argument 'wait'"),
    ],
)
def test_zk_locked__bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """An unknown choice is refused at decoration, and the error names the known ones."""
    with pytest.raises(error, match=message):
        zk_locked("k", **options)


@pytest.mark.parametrize("key", [None, 42, b"key", {"a", "b"}, object()])
def test_zk_locked__bad_key(key: Any) -> None:
    """A value that cannot be a key is refused at decoration, and the error shows the right form."""
    with pytest.raises(TypeError, match=r'write @zk_locked\("invoice:\{invoice_id\}"\)'):
        zk_locked(key)


@pytest.mark.parametrize("key", ["{nobody}", "", "{", "{}", "x" * 1025])
def test_zk_locked__bad_template(key: str) -> None:
    """A template that can never work is refused at decoration."""
    with pytest.raises(ValueError, match="key"):

        @zk_locked(key)
        def work(number: int) -> None: ...


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_template, "_modules_without_field", set())


def test_template__percent() -> None:
    """A template with a ``%s`` warns where the function is defined: it is not replaced."""
    with pytest.warns(UserWarning, match=r"lock key 'invoice:%s' of .*bill has %s, which is not replaced") as caught:

        @zk_locked("invoice:%s", template="invoice")
        def bill(invoice_id: int) -> None: ...

    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, bill.__wrapped__.__code__.co_firstlineno)  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["invoice", ["invoice", "account"], "{{invoice}}"])
def test_template__without_a_field(key: Any) -> None:
    """A constant key over an argument without a default warns, and says what to write for one lock and for many."""
    with pytest.warns(
        UserWarning, match=r"has no field, .* whatever invoice_id and shop may be: .*{invoice_id}.*template="
    ):

        @zk_locked(key)
        def bill(invoice_id: int, shop: str, *, force: bool = False) -> None: ...


def test_template__without_a_field_once() -> None:
    """A module where one key has no field is warned of once, and not for each of its functions."""
    with pytest.warns(UserWarning, match=r"other keys of the module .*test_decorators may have none either"):
        zk_locked("one")(lambda invoice_id: None)
    zk_locked("two")(lambda invoice_id: None)  # a warning would be an error


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("invoice", {"template": "invoice"}),
        ("invoice", {"limit": 2}),
        ("invoice", {"mode": "read"}),
        ("invoice", {"mode": "write"}),
        ("{invoice_id:%d}", {}),
        (["all", "{invoice_id}"], {}),
        (lambda: "invoice", {}),
    ],
)
def test_template__no_warning(key: Any, options: dict[str, Any]) -> None:
    """A key with a field does not warn, nor one whose options show that one lock for all calls is meant."""

    @zk_locked(key, **options)  # type: ignore[untyped-decorator]
    def bill(invoice_id: int) -> None: ...


def test_template__no_argument_that_varies() -> None:
    """A constant key does not warn for what is optional, collected or the context, nor for a command: it is one job."""

    class Service:
        @zk_locked("service")
        def method(self, force: bool = False) -> None: ...

        @zk_locked("service")
        def view(self, request: object, *args: object, **kwargs: object) -> None: ...

    class Command(BaseCommand):
        @zk_locked("nightly-report")
        def handle(self, *args: Any, secs: int, **options: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("ttl", "a lock has no time to live"),
        ("lease", "a lock has no time to live"),
        ("blocking", r"lock\.try_acquire\(\) does not wait"),
        ("max_wait", "timeout= is how long a call waits"),
        ("retry_delay", "does not ask again and again"),
        ("permits", "limit= is how many may hold the lock"),
        ("shared", 'mode="read" shares the lock'),
        ("name", "the key is the first argument"),
        ("tiemout", "did you mean timeout=?"),
        ("zzz", r"it has .*timeout=, "),
    ],
)
@pytest.mark.parametrize("function", ["zk_locked", "zk_lock", "acquire", "aacquire"])
def test_unknown_argument(ensemble: Ensemble, function: str, name: str, advice: str) -> None:
    """An argument of other libraries is answered with what is written here instead, and a misspelt one is named."""
    lock = zk_lock("k")
    commit = zk_lock("k", release="commit")
    calls: dict[str, list[Any]] = {
        "zk_locked": [functools.partial(zk_locked, "k")],
        "zk_lock": [functools.partial(zk_lock, "k")],
        "acquire": [lock.acquire, commit.acquire],
        "aacquire": [lock.aacquire],
    }
    for call in calls[function]:
        with pytest.raises(TypeError, match=rf"{function}\(\) got an unexpected keyword argument '{name}': .*{advice}"):
            call(**{name: 30})


def test_wrong_use() -> None:
    """A decorator without a key, or as a block, says what was meant."""
    with pytest.raises(TypeError, match=r'needs the key of the lock: write @zk_locked\("invoice:{invoice_id}"\)'):
        zk_locked()  # type: ignore[call-overload]
    locked: Any = zk_locked("nightly")
    with pytest.raises(TypeError, match=r'for a block write `with zk_lock\("…"\):`, got \'nightly\''), locked:
        raise AssertionError
    with pytest.raises(TypeError, match=r'for a block write `async with zk_lock\("…"\):`'):
        asyncio.run(locked.__aenter__())


# Views that are skipped.


class _ApiRequest:
    """The request of Django REST framework, which wraps Django's."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request


class _ApiView:
    @zk_locked("pay:{number}", on_conflict="skip")
    def post(self, request: _ApiRequest, number: int) -> HttpResponse:
        raise AssertionError


@zk_locked("pay:{number}", on_conflict="skip")
def _view(request: HttpRequest, number: int) -> HttpResponse:
    raise AssertionError


@zk_locked("pay:{number}", on_conflict="skip")
async def _aview(request: HttpRequest, number: int) -> HttpResponse:
    raise AssertionError


@zk_locked("pay:{number}", on_conflict=Busy(status=423, retry_after=10))
def _webdav(request: HttpRequest, number: int) -> HttpResponse:
    raise AssertionError


VIEWS: dict[str, tuple[Callable[[HttpRequest], Any], int, str]] = {
    "function": (lambda request: _view(request, 7), 409, "2"),
    "named argument": (lambda request: _view(request=request, number=7), 409, "2"),  # type: ignore[call-arg]
    "async": (lambda request: asyncio.run(_aview(request, 7)), 409, "2"),
    "REST framework": (lambda request: _ApiView().post(_ApiRequest(request), 7), 409, "2"),
    "423": (lambda request: _webdav(request, 7), 423, "10"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view__skipped(other_client: OtherClient, name: str) -> None:
    """A view that is skipped answers that the client shall try again, and names no process."""
    call, status, retry_after = VIEWS[name]
    other_client.take("pay:7")
    response = call(RequestFactory().post("/"))
    assert (response.status_code, response["Retry-After"]) == (status, retry_after)
    assert response.content == b"Try again in a moment.\n"


def test_busy__unavailable() -> None:
    """Without ZooKeeper the status is 503, whatever that of a conflict is."""
    assert Busy(status=423).response(is_unavailable=True).status_code == 503


@pytest.mark.parametrize("options", [{"status": 200}, {"status": None}, {"retry_after": -1}, {"retry_after": "1\r\n"}])
def test_busy__wrong(options: dict[str, Any]) -> None:
    """What is no answer to a conflict is refused where it is written."""
    with pytest.raises(ValueError, match="must be"):
        Busy(**options)


def test_lock__in_a_template(ensemble: Ensemble) -> None:
    """A template shows a lock, and does not call it."""
    assert Template("{{ lock.key }}").render(Context({"lock": zk_lock("invoice:42")})) == "invoice:42"


def test_skipped__lazy_argument(other_client: OtherClient) -> None:
    """A call that is skipped does not evaluate its arguments, as a query for a user would."""

    @zk_locked("pay:{number}", on_conflict="skip")
    def pay(_user: object, number: int) -> None: ...

    other_client.take("pay:7")
    asked: list[None] = []
    assert pay(SimpleLazyObject(lambda: asked.append(None)), 7)["zklock"] == "skipped"  # type: ignore[index]
    assert asked == []


# Class-based views.


@contextlib.contextmanager
def _held(other_client: OtherClient, key: str) -> Iterator[None]:
    other_client.take(key)
    yield
    other_client.release(key)


def _skipped(conflict: Conflict) -> HttpResponse:
    return HttpResponse(f"{conflict.key} is taken", status=423)


@method_decorator(zk_locked("invoice:{pk}", on_conflict=_skipped), name="dispatch")
class InvoiceView(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(held_key())


class AccountView(View):
    @method_decorator(zk_locked("account:{number}:{request.method}", on_conflict=_skipped))
    def get(self, request: HttpRequest, number: int, *, shop: str = "main") -> HttpResponse:
        return HttpResponse(f"{held_key()} {shop}")


@pytest.mark.parametrize(
    ("view", "arguments", "key"),
    [(InvoiceView, {"pk": 7}, "invoice:7"), (AccountView, {"number": 3}, "account:3:GET")],
)
def test_view__holds(other_client: OtherClient, view: type[View], arguments: dict[str, int], key: str) -> None:
    """A class-based view takes its lock by Django's method_decorator, with a template over the arguments of the URL."""
    request = RequestFactory().get("/")

    def get() -> tuple[int, str]:
        response = view.as_view()(request, **arguments)
        assert isinstance(response, HttpResponse)
        return response.status_code, response.content.decode()

    status, text = get()
    assert (status, text.split()[0]) == (200, key)
    with _held(other_client, key):
        assert get() == (423, f"{key} is taken")


def test_generator__refused() -> None:
    """Generators, async ones and context managers run after the call has returned, and are refused."""
    locked = zk_locked("k")
    for kind in (_generator, _async_generator, contextlib.contextmanager(_generator)):
        with pytest.raises(TypeError, match=r"cannot lock the generator .*generator: .*take the lock inside"):
            locked(kind)
    with pytest.raises(TypeError, match="cannot lock the generator"):
        locked(contextlib.asynccontextmanager(_async_generator))


# Functions that have others.


def _held_key() -> str | None:
    held = current_lock()
    return held.key if held is not None else None


def test_singledispatch(ensemble: Ensemble) -> None:
    """Above `singledispatch` the lock is for all implementations, below it for those that are decorated."""

    @zk_locked("above", template="above")
    @functools.singledispatch
    def above(value: object) -> str | None:
        return _held_key()

    above.register(int, lambda value: _held_key())

    @functools.singledispatch
    @zk_locked("below", template="below")
    def below(value: object) -> str | None:
        return _held_key()

    below.register(int, lambda value: _held_key())
    assert [above("a"), above(1), below("a"), below(1)] == ["above", "above", "below", None]


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    "target", [42, "text", functools.partial(print), operator.itemgetter(0), property(lambda self: 1), int, object]
)
def test_zk_locked__cannot_be_decorated(target: Any) -> None:
    """Other targets are refused, and the error shows the right form or the possible targets."""
    with pytest.raises(TypeError, match="zk_locked decorates"):
        zk_locked("k")(target)


def test_coroutine_behind_a_plain_wrapper__refused(ensemble: Ensemble) -> None:
    """A coroutine that a plain wrapper returns would run after the release, so the call fails."""

    async def work() -> None: ...

    @zk_locked("k")
    @functools.wraps(work)
    def plain() -> Any:
        return work()

    with pytest.raises(TypeError, match="directly above its `async def`"):
        plain()
    ensemble.wait_empty("k")


@pytest.mark.parametrize("name", ["on_conflict", "on_unavailable"])
def test_async_callable__of_a_plain_function(name: str) -> None:
    """An async callable that decides for a plain function would never be awaited, and is refused."""

    async def later(conflict: Any) -> None: ...

    options: dict[str, Any] = {name: later}
    with pytest.raises(TypeError, match=f"{name}=.* it would never be awaited"):
        zk_locked("k", **options)(lambda: None)


# Bare use, and key callables that look like it.


def noop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put a wrapper before a function, as most decorators do."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


BARE = {
    "function": """
        @zk_locked
        def work(number): ...
    """,
    "in a function": """
        def make():
            @zk_locked
            def work(
                number,
            ):
                return number
        make()
    """,
    "between decorators": """
        @noop
        @zk_locked
        @noop
        @noop
        def work(number):
            return 1
    """,
    "staticmethod": """
        class Service:
            @zk_locked
            @staticmethod
            def work(): ...
    """,
    "property": """
        class Service:
            @zk_locked
            @property
            def work(self): ...
    """,
    "class": """
        @zk_locked
        class Command(BaseCommand):
            def handle(self): ...
    """,
    "redefined": """
        def work(): ...
        @zk_locked
        def work(): ...
    """,
}
if django.VERSION >= (6, 0):
    BARE["Django task"] = """
        @zk_locked
        @task
        def work(): ...
    """

CALLABLE = {
    "in the same file": """
        def key(number): return number
        @zk_locked(key)
        def work(number): ...
    """,
    "in the same function": """
        def make():
            def key(number):
                return number
            @zk_locked(key)
            def work(number): ...
            return work
        make()
    """,
    "lambda over lines": """
        @zk_locked(
            lambda number:
                number
        )
        def work(number): ...
    """,
    "partial": """
        @zk_locked(functools.partial(lambda a, number: number, 1))
        def work(number): ...
    """,
    "wrapped": """
        @noop
        def key(number): return number
        @zk_locked(key)
        def work(number): ...
    """,
    "class": """
        from uuid import UUID
        @zk_locked(UUID)
        def work(number): ...
    """,
    "class of this file": """
        class Key(str): ...
        @zk_locked(Key)
        def work(number): ...
    """,
    "recursive": """
        def key(number):
            @zk_locked(key)
            def work(number): ...
            return work
        key(1)
    """,
    "method": """
        class Maker:
            def key(self, number): return number
        @zk_locked(Maker().key)
        def work(number): ...
    """,
}


def execute(source: str, path: Path) -> types.ModuleType:
    """Run a module's text as if it was imported."""
    path.write_text(textwrap.dedent(source))
    module = types.ModuleType("sample")
    module.__dict__.update(zk_locked=zk_locked, noop=noop, functools=functools, BaseCommand=BaseCommand)
    if django.VERSION >= (6, 0):
        module.__dict__.update(task=task)
    exec(compile(path.read_text(), path, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("source", BARE.values(), ids=BARE.keys())
def test_bare_use__refused(source: str, tmp_path: Path) -> None:
    """`@zk_locked` without a key fails at decoration, for every target, and the error shows the right form."""
    with pytest.raises(TypeError, match=r'needs the key of the lock: write @zk_locked\("invoice:\{invoice_id\}"\)'):
        execute(source, tmp_path / "sample.py")


def test_bare_use__behind_a_wrapper_that_hides_it(tmp_path: Path) -> None:
    """If a decorator below hides its target, the error of the first call with an argument shows the right form."""

    def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*args)  # noqa: PLW0108 - hides it

    hidden: Any = zk_locked(hiding(len))
    with pytest.raises(TypeError, match=r"zk_locked decorates functions, commands and tasks, not 'abc': write"):
        hidden("abc")


@pytest.mark.parametrize("source", CALLABLE.values(), ids=CALLABLE.keys())
def test_key_callable__accepted(source: str, tmp_path: Path) -> None:
    """A key callable is accepted, wherever it is defined."""
    module = execute(source, tmp_path / "sample.py")
    assert not isinstance(getattr(module, "work", None), Locked)


def test_key_callable__interactive() -> None:
    """In an interactive shell every input is line 1 of the same file, and a key callable is accepted there too."""
    names: dict[str, Any] = {"zk_locked": zk_locked, "__name__": "__console__"}
    exec(compile("def key(number):\n    return number\n", "<stdin>", "exec"), names)
    exec(compile("@zk_locked(key)\ndef work(number):\n    return number\n", "<stdin>", "exec"), names)
    with pytest.raises(TypeError, match="needs the key of the lock"):
        exec(compile("@zk_locked\ndef work(number):\n    return number\n", "<stdin>", "exec"), names)


@pytest.mark.parametrize("name", ["on_conflict", "on_unavailable"])
def test_retry__without_celery(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`"retry"` without Celery is refused, and the error says what to install."""
    for module in [module for module in sys.modules if module.startswith(("django_zklock.contrib.celery", "celery"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "celery", None)
    options: dict[str, Any] = {name: "retry"}
    with pytest.raises(ValueError, match=rf'{name}="retry" needs Celery: pip install django-zklock\[celery\]'):
        zk_locked("k", **options)
