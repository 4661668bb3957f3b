"""What the documents say about running ZooKeeper, on real servers, and the texts that a reader can search for."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import django_zklock
from tests.project.doc_blocks import BLOCKS, PAGES, Block, runs
from tests.project.reference_pages import sections
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.ensemble import Ensemble

ZOOKEEPER = "docs/explanation/zookeeper.md"
SYMPTOMS = "docs/howto/troubleshooting.md"
CODE = "\n".join(path.read_text(encoding="utf-8") for path in Path(django_zklock.__file__).parent.rglob("*.py"))
# Texts of others, and parts of ours that the code puts together.
OTHERS = {
    "CERTIFICATE_VERIFY_FAILED",
    "Connection refused",
    "Exception ignored in",
    "Packet len … is out of range",
    "Too many open files",
    "Unknown command: 'zklock'",
    "can't start new thread",
    "refused: NoAuthError()",
    "this process cannot start a connection, now or later",
    "zkCli.sh",
}


def readiness_probe() -> list[str]:
    """Return the command by which Kubernetes asks whether a server of the manifest is ready."""
    (block,) = (block for block in BLOCKS if block.page == ZOOKEEPER and block.language == "yaml")
    *_others, servers = yaml.safe_load_all(block.text)
    (container,) = servers["spec"]["template"]["spec"]["containers"]
    return [str(word) for word in container["readinessProbe"]["exec"]["command"]]


@pytest.mark.zookeeper
@pytest.mark.once
@runs(ZOOKEEPER, "tickTime=2000")
def test_servers(blocks: list[Block]) -> None:
    """Three servers form an ensemble with the lines of the page, and have each counter that it names."""
    (block,) = blocks
    lines = dict(line.split("=", 1) for line in block.text.splitlines() if not line.startswith("#"))
    # What differs from host to host, and three hosts of one machine; the words are needed by the test itself.
    own = {"dataDir", "clientPort", "4lw.commands.whitelist"} | {name for name in lines if name.startswith("server.")}
    settings = {name: value for name, value in lines.items() if name not in own}
    named = set(re.findall(r"`(zk_\w+)`", PAGES[ZOOKEEPER]))
    with Ensemble(settings=settings) as ensemble:
        leader = ensemble.leader()
        assert len(ensemble.followers()) == 2
        configuration = dict(line.split("=", 1) for line in leader.command("conf").splitlines() if "=" in line)
        assert [configuration[name] for name in ("tickTime", "maxClientCnxns")] == ["2000", "1000"]
        assert named <= leader.mntr().keys()
        assert named - ensemble.followers()[0].mntr().keys() == {"zk_synced_followers"}
        ready = readiness_probe()
        probe = [*ready[:-1], ready[-1].replace("2181", str(leader.port))]
        assert subprocess.run(probe, timeout=scaled(60), check=False).returncode == 0
        ensemble.stop()
        assert subprocess.run(probe, timeout=scaled(60), check=False, stderr=subprocess.DEVNULL).returncode != 0
    assert {"srvr", "mntr", "conf"} == {*lines["4lw.commands.whitelist"].split(",")}


@runs(ZOOKEEPER, language="yaml")
def test_manifest(blocks: list[Block]) -> None:
    """The manifest has three servers on three nodes, and the names of the servers are those of its service."""
    (block,) = blocks
    service, budget, servers = yaml.safe_load_all(block.text)
    assert [each["kind"] for each in (service, budget, servers)] == ["Service", "PodDisruptionBudget", "StatefulSet"]
    assert service["spec"]["clusterIP"] == "None"
    assert budget["spec"] == {"maxUnavailable": 1, "selector": servers["spec"]["selector"]}
    template = servers["spec"]["template"]
    assert template["metadata"]["labels"] == service["spec"]["selector"]
    (container,) = template["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    hosts = [f"{servers['metadata']['name']}-{number}.{service['metadata']['name']}" for number in range(3)]
    assert servers["spec"]["replicas"] == len(hosts)
    assert re.findall(r"server\.(\d)=([\w.-]+):2888:3888;2181", environment["ZOO_SERVERS"]) == [
        (str(number), host) for number, host in enumerate(hosts, 1)
    ]
    assert ",".join(f"{host}:2181" for host in hosts) in PAGES[ZOOKEEPER]
    # The number of a server comes from the name of its pod.
    start = [word.replace("/docker-entrypoint.sh zkServer.sh start-foreground", "env") for word in container["command"]]
    environment = {"HOSTNAME": "zk-2", "PATH": os.environ["PATH"]}
    shown = subprocess.run(
        start, env=environment, capture_output=True, text=True, timeout=scaled(60), check=True
    ).stdout
    assert "ZOO_MY_ID=3" in shown.splitlines()


def symptoms() -> list[str]:
    """Return the texts that a reader can search for: those in the first column of the tables."""
    rows = [line for line in PAGES[SYMPTOMS].splitlines() if line.startswith("| ") and " | " in line]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def is_ours(text: str) -> bool:
    """Whether a message, event, metric or command is one of the code."""
    if text.startswith("event="):
        events = PAGES["docs/reference/log-events.md"]
        return bool(re.search(rf"^\| `{text.removeprefix('event=')}` \|", events, re.MULTILINE))
    if text.startswith("zklock show"):
        return "zklock show" in sections("commands.md")
    ours = re.sub(r"^ImproperlyConfigured: (ZKLOCK)…$", r"\1", text)
    return ours in CODE or any(ours in block.text for block in BLOCKS if block.page != SYMPTOMS)


def test_symptoms__exist() -> None:
    """Each message, event, metric and command in the first column is one of the code."""
    assert len(symptoms()) > len(OTHERS)
    assert sorted(text for text in {*symptoms()} - OTHERS if not is_ours(text)) == []


@pytest.mark.parametrize("page", [SYMPTOMS, "docs/howto/production.md"])
def test_findings__exist(page: str) -> None:
    """Each finding of the doctor that a page names has its section."""
    groups = "|".join(sorted({name.partition(".")[0] for name in sections("doctor.md")}))
    named = set(re.findall(rf"`((?:{groups})\.[a-z-]+)`", PAGES[page]))
    assert named
    assert named <= {*sections("doctor.md")}
