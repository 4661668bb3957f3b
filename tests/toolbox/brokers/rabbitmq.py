"""A RabbitMQ server on the loopback interface, with a node name and folders of its own."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tests.toolbox.brokers.epmd import Epmd
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.folder import remove_folder
from tests.toolbox.processes.process import NotInstalledError, Process

# Debian's program on the path takes only root and the user of the daemon, and changes to that one's folders.
DEBIAN_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PROBE_TIMEOUT = 1.0
CONTROL_TIMEOUT = 100.0

# What a client of AMQP 0-9-1 begins with, and the type of the frame that answers it.
GREETING = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME = b"\x01"


class RabbitMQ(Process):
    """One server, without plugins; ``stop`` and ``start`` keep durable queues and what is in them."""

    name: ClassVar[str] = "RabbitMQ"
    # Some ten seconds, and many times that on a busy machine.
    start_timeout = 180.0
    stop_timeout = 20.0

    def __init__(self) -> None:
        """Choose ports and write the configuration; nothing runs yet."""
        program = str(DEBIAN_PROGRAM) if DEBIAN_PROGRAM.exists() else shutil.which("rabbitmq-server")
        if program is None:
            msg = "RabbitMQ is not installed; get it with `apt-get install rabbitmq-server`"
            raise NotInstalledError(msg)
        super().__init__()
        self._program = Path(program)
        self._epmd = Epmd()
        self.port = free_port()
        self._port_of_node = free_port()
        # The default alarm stops producers while the disk has less than 50 MB.
        (self.folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 1MB\n", encoding="ascii")
        (self.folder / "environment").touch()
        (self.folder / "plugins").write_text("[].\n", encoding="ascii")

    @property
    def url(self) -> str:
        """The address as a Celery broker URL."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}//"

    def arguments(self) -> list[str]:
        """Run the server in the foreground."""
        return [str(self._program)]

    def environment(self) -> dict[str, str]:
        """Configure everything of this server, whatever the configuration of the machine's own server is."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
        return {
            **kept,
            **self._epmd.settings,
            # Erlang keeps there the secret by which programs of one user know each other.
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"node-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._port_of_node),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "environment"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
        }

    def launch(self) -> None:
        """Start the server, after the port mapper, and do not wait for it."""
        if not self._epmd.is_running():
            self._epmd.start()
        super().launch()

    def is_ready(self) -> bool:
        """Tell whether the server answers a client's first words."""
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT * self.slowness) as connection:
                connection.settimeout(PROBE_TIMEOUT * self.slowness)
                connection.sendall(GREETING)
                return connection.recv(1) == METHOD_FRAME
        except OSError:
            return False

    def close_connections(self) -> None:
        """Close the connection of each client, as an operator does, one that has just begun too."""
        self._order(
            'lists:foreach(fun(C) -> rabbit_networking:close_connection(C, "closed") end, '
            "rabbit_networking:connections())"
        )

    def list_messages(self) -> dict[str, int]:
        """Return how many messages each queue has, those that are delivered and not acknowledged too."""
        name, count = "element(4, proplists:get_value(name, I))", "proplists:get_value(messages, I)"
        counts = f'maps:from_list([{{{name}, {count}}} || I <- rabbit_amqqueue:info_all(<<"/">>, [name, messages])])'
        # The program prints the bytes of a name as numbers, and a text of ASCII as it is.
        text = self._evaluate(f"binary_to_list(base64:encode(rabbit_json:encode({counts})))")
        found: dict[str, int] = json.loads(base64.b64decode(text.strip('"')))
        return found

    def keep_dead_letters(self, queue: str, letters: str) -> None:
        """Send what is rejected from ``queue`` for good to the queue ``letters``."""
        self._set_policy(letters, queue, {"dead-letter-exchange": "", "dead-letter-routing-key": letters})

    @contextmanager
    def alarm(self) -> Iterator[None]:
        """Let the server take no message, as if it had no memory left."""
        self._order("vm_memory_monitor:set_vm_memory_high_watermark(0.000001)")
        try:
            yield
        finally:
            self._order("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")

    def expire_messages(self, queue: str, seconds: float, letters: str) -> None:
        """Send what has been in ``queue`` for ``seconds``, if no consumer has it, to the queue ``letters``."""
        limit, where = round(seconds * 1000), {"dead-letter-exchange": "", "dead-letter-routing-key": letters}
        self._set_policy(letters, queue, {"message-ttl": limit, **where})

    def limit_acknowledgement(self, seconds: float = 1800.0, *, look_every: float = 60.0) -> None:
        """Close a channel, of those opened from now on, that leaves a message unacknowledged for ``seconds``.

        RabbitMQ looks for them every ``look_every`` seconds; the defaults are its own.
        """
        limits = {"consumer_timeout": seconds, "channel_tick_interval": look_every}
        for name, limit in limits.items():
            self._order(f"application:set_env(rabbit, {name}, {round(limit * 1000)})")

    def limit_deliveries(self, queue: str, count: int) -> None:
        """Let the quorum queue ``queue`` drop a message that was delivered again ``count`` times."""
        self._set_policy(f"{queue}-limit", queue, {"delivery-limit": count})

    def limit_length(self, queue: str, count: int) -> None:
        """Let ``queue`` refuse what is published while ``count`` messages wait in it."""
        self._set_policy(f"{queue}-length", queue, {"max-length": count, "overflow": "reject-publish"})

    def _set_policy(self, name: str, queue: str, policy: Mapping[str, str | int]) -> None:
        # The way of `rabbitmqctl set_policy`. JSON's way to write a text is Erlang's too.
        texts = [f"<<{json.dumps(text)}>>" for text in ("/", name, f"^{queue}$", json.dumps(policy))]
        self._order(f'rabbit_policy:parse_set({", ".join(texts)}, 0, <<"queues">>, <<"tests">>)')

    def _order(self, expression: str) -> None:
        """Let the server evaluate an expression that returns ``ok``."""
        assert self._evaluate(expression) == "ok", expression

    def _evaluate(self, expression: str) -> str:
        """Let the server evaluate an expression, and return its value.

        `rabbitmqctl` can do the same, and takes half a second of computing to start.
        """
        program = shutil.which("erl_call")
        if program is None:
            msg = "erl_call is not installed; get it with `apt-get install erlang-base`"
            raise NotInstalledError(msg)
        environment = self.environment()
        answer = subprocess.run(
            # -R: the server chooses a name for the caller, which no other caller has.
            [program, "-sname", environment["RABBITMQ_NODENAME"], "-R", "-e"],
            input=f"{expression}.\n",
            env=environment,
            cwd=self.folder,
            capture_output=True,
            check=False,
            timeout=CONTROL_TIMEOUT * self.slowness,
            text=True,
        )
        value = re.fullmatch(r"\{ok, ?(.*)\}", answer.stdout.strip())
        assert value is not None, f"{expression}: {answer}"
        return value[1]

    def kill(self) -> None:
        """End the server at once, as if its host had died."""
        super().kill()
        self._epmd.kill()

    def close(self) -> None:
        """End the server without the seconds that it takes to save what is removed then, and remove its folder."""
        self.kill()
        self._epmd.close()
        remove_folder(self.folder)
