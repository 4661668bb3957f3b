"""The dashboard and the alert rules of the documents use the metrics that are exported, all of them and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from django_zklock.connections import connections
from tests.project.doc_blocks import PAGES, ROOT
from tests.project.reference_pages import sections

FOLDER = ROOT / "docs" / "_static" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((FOLDER / "prometheus-alerts.yml").read_text(encoding="utf-8"))
ATTRIBUTES = set(re.findall(r"^`(zklock\.\w+)`$", sections("metrics.md")["Attributes"], re.MULTILINE))


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Return the names of our metrics as OpenTelemetry's exporter writes them for Prometheus."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import REGISTRY, generate_latest

    from django_zklock.contrib.opentelemetry import _SIGNALS, Instruments

    # A metric of pools; none of them is connected.
    assert connections["default"].sessions() == []
    provider = MeterProvider([PrometheusMetricReader()])
    instruments = Instruments(provider.get_meter("test"))
    facts = {"alias": "default", "kind": "exclusive", "template": "t", "reason": "conflict", "duration": 1.0}
    for signal in _SIGNALS:
        instruments.measure(signal, held=SimpleNamespace(waited=1.0), **facts)
    text = generate_latest(REGISTRY).decode()
    provider.shutdown()
    # A histogram has a sum and a count too, which are not needed.
    return {name for name in re.findall(r"^(zklock_\w+)", text, re.MULTILINE) if not name.endswith(("_sum", "_count"))}


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (variable["query"] for variable in DASHBOARD["templating"]["list"])


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def used(queries: Iterator[str]) -> set[str]:
    """Return the names of metrics and labels of ours in queries."""
    return {name for query in queries for name in re.findall(r"\bzklock_\w+", query)}


@pytest.mark.parametrize("where", ["dashboard", "alerts"])
def test_metrics__are_those_that_are_exported(where: str, exported: set[str]) -> None:
    """Each metric of a query is exported, and each that is exported is in a query."""
    queries = dashboard_queries() if where == "dashboard" else (rule["expr"] for rule in rules())
    labels = {name.replace(".", "_") for name in ATTRIBUTES}
    assert used(queries) - labels == exported


def test_counters__are_used_as_rates() -> None:
    """A counter is never shown or compared as it is, because it starts again with each process.

    Only a series that is new counts as it is: ``x unless x offset 10m``.
    """
    selector = r"zklock_\w+_(?:total|bucket)(?:\{[^}]*\})?"
    for query in [*dashboard_queries(), *(rule["expr"] for rule in rules())]:
        rest = re.sub(rf"({selector}) unless \1 offset \d+[mh]", "", query)
        rest = re.sub(rf"(?:rate|increase|label_values)\({selector}", "", rest)
        rest = re.sub(rf"and {selector} offset \d+[mh]", "", rest)
        assert re.search(selector, rest) is None, query


def test_queries__can_be_parsed() -> None:
    """Prometheus accepts each query, once Grafana has replaced its variables."""
    promql = pytest.importorskip("promql_parser")
    queries = [query for query in dashboard_queries() if not query.startswith(("label_values", "prometheus"))]
    for query in [*queries, *(rule["expr"] for rule in rules())]:
        promql.parse(query.replace("$__rate_interval", "5m"))


def test_page__names_each_alert() -> None:
    """The how-to lists the alerts."""
    assert set(re.findall(r"^\| `(\w+)` \|", PAGES["docs/howto/metrics.md"], re.MULTILINE)) == {
        rule["alert"] for rule in rules()
    }
