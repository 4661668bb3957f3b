"""The list and the page of a lock as read-only JSON, with the names and meanings of ``manage.py zklock``."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from django.http import JsonResponse

from django_zklock import serializers
from django_zklock.admin.changelist import LockChangeList
from django_zklock.admin.detail import MAX_ENTRIES
from django_zklock.admin.reader import AliasReader
from django_zklock.models import Lock


def lock_list(changelist: LockChangeList) -> JsonResponse:
    """Return one page of the list, with the first holders of each lock."""
    failed = [{"alias": reader.alias, "problem": reader.error} for reader in changelist.failed_readers]
    now = time.time()
    content = {
        "locks": [serializers.serialize_lock(lock.alias, lock.snapshot, now) for lock in changelist.result_list],
        "page": changelist.page_num,
        "pages": changelist.paginator.num_pages,
        "count": changelist.result_count,
        "exact": changelist.exact,
        "problems": failed,
    }
    # With at least one readable ensemble the answer is still useful.
    unavailable = failed and len(failed) == len(changelist.readers)
    return _response(content, HTTPStatus.SERVICE_UNAVAILABLE if unavailable else HTTPStatus.OK)


def one_lock(lock: Lock) -> JsonResponse:
    """Return one lock with the first hundred entries of its queue."""
    reader = AliasReader(lock.alias)
    snapshot = reader.read_lock(lock.name, MAX_ENTRIES)
    if snapshot is None:
        return error(HTTPStatus.SERVICE_UNAVAILABLE, reader.error)
    return _response(serializers.serialize_lock(lock.alias, snapshot, time.time()), HTTPStatus.OK)


def error(status: HTTPStatus, message: str) -> JsonResponse:
    """Return an error as JSON."""
    return _response({"error": message}, status)


def _response(content: dict[str, Any], status: HTTPStatus) -> JsonResponse:
    return JsonResponse(content, status=status, headers={"Cache-Control": "no-store"})
