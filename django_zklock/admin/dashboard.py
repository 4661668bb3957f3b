"""The same as JSON, for dashboards: read-only. Names and meaning are those of ``manage.py zklock``."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from django.http import JsonResponse

from django_zklock import facts
from django_zklock.admin.changelist import LockChangeList
from django_zklock.admin.page import PLACES_SHOWN
from django_zklock.admin.source import Source
from django_zklock.models import Lock


def locks(found: LockChangeList) -> JsonResponse:
    """Give the page of the list that was found, with the first holders of each lock."""
    problems = [{"alias": source.alias, "problem": source.problem} for source in found.problems]
    now = time.time()
    content = {
        "locks": [facts.lock(lock.alias, lock.line, now) for lock in found.result_list],
        "page": found.page_num,
        "pages": found.paginator.num_pages,
        "count": found.result_count,
        "exact": found.exact,
        "problems": problems,
    }
    # Those of other ensembles are worth telling.
    away = problems and len(problems) == len(found.sources)
    return _response(content, HTTPStatus.SERVICE_UNAVAILABLE if away else HTTPStatus.OK)


def lock(lock: Lock) -> JsonResponse:
    """Give one lock with the first hundred in its line."""
    source = Source(lock.alias)
    line = source.line(lock.name, PLACES_SHOWN)
    if line is None:
        return error(HTTPStatus.SERVICE_UNAVAILABLE, source.problem)
    return _response(facts.lock(lock.alias, line, time.time()), HTTPStatus.OK)


def error(status: HTTPStatus, problem: str) -> JsonResponse:
    """Give why there is nothing else."""
    return _response({"error": problem}, status)


def _response(content: dict[str, Any], status: HTTPStatus) -> JsonResponse:
    return JsonResponse(content, status=status, headers={"Cache-Control": "no-store"})
