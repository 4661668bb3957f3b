"""The first lock of a process, which imports kazoo, meanwhile a fork or a signal comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Calls `while_importing` in the middle of the import of kazoo, in the thread that imports it.
START = """
import os, signal, sys, threading, warnings
from django.conf import settings
from django_zklock.testing import ZooKeeperServer

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "kazoo.client" and begun.acquire(blocking=False):
            while_importing()

begun = threading.Semaphore(1)
sys.meta_path.insert(0, Finder)
warnings.simplefilter("ignore")
# Ends a process that waits for ever.
signal.alarm(60)
server = ZooKeeperServer()
server.start()
settings.configure(
    ZKLOCK={"default": {"HOSTS": server.hosts, "ACL": ["world:anyone:cdrwa"]}}, INSTALLED_APPS=["django_zklock"]
)
import django
django.setup()
from django_zklock import zk_lock
assert "kazoo" not in sys.modules
"""
FORK = """
importing, forking = threading.Event(), threading.Event()

def while_importing():
    importing.set()
    assert forking.wait(30)

# What is registered last is called first.
os.register_at_fork(before=forking.set)
other = threading.Thread(target=lambda: zk_lock("a").acquire(timeout=120))
other.start()
assert importing.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(20)
    zk_lock("b").acquire(timeout=120)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
other.join()
"""
SIGNAL = """
handling, tokens = threading.Event(), []

def while_importing():
    os.kill(os.getpid(), signal.SIGUSR1)
    assert handling.wait(30)

def handle(*_):
    handling.set()
    tokens.append(zk_lock("b").acquire(timeout=120).token)

signal.signal(signal.SIGUSR1, handle)
zk_lock("a").acquire(timeout=120)
assert tokens
"""


@pytest.mark.shows("faults#it-forks-while-another-thread-makes-a-connection")
@pytest.mark.parametrize("meanwhile", [FORK, SIGNAL], ids=["fork", "signal"])
def test_first_use__meanwhile(meanwhile: str) -> None:
    """The forked child and the handler of the signal take their first lock, as if kazoo had been imported before."""
    run = subprocess.run(
        [sys.executable, "-c", START + meanwhile], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
