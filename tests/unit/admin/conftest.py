"""Users of the admin, and the text of the pages that they get."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.unit.admin.pages import member


@pytest.fixture
def viewer(client: Client) -> Client:
    """Log in a member of staff with only the permission to view locks."""
    client.force_login(member("viewer", "view_lock"))
    return client


@pytest.fixture
def boss() -> Client:
    """Log in a member of staff with all permissions for locks, with a client that enforces CSRF."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(member("boss", "view_lock", "break_lock", "revoke_lock"))
    return client
