"""People at the admin, and what they see."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.test import Client

LIST = "/admin/django_zklock/lock/"
GUID = "01234567-89ab-cdef-0123-456789abcdef"
NASTY = "<script>alert('1')</script>&\u202egpj.exe\x1b[31m"


def body_of(response: HttpResponseBase) -> str:
    """Give the HTML."""
    assert isinstance(response, HttpResponse)
    return response.content.decode()


def text_of(response: HttpResponseBase) -> str:
    """Give what a reader sees, roughly: tags become spaces."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body_of(response))))


def member(name: str, *codenames: str) -> User:
    """Make a member of staff with these permissions and no others."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


@pytest.fixture
def viewer(client: Client) -> Client:
    """Log in a member of staff who may view locks, and nothing else."""
    client.force_login(member("viewer", "view_lock"))
    return client


@pytest.fixture
def boss() -> Client:
    """Log in a member of staff who may do everything to locks, at a client that enforces CSRF."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(member("boss", "view_lock", "break_lock", "revoke_lock"))
    return client
