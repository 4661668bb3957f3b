"""The admin's pages as a test reads them, and the users that read them."""

from __future__ import annotations

import re
from html import unescape

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from django_zklock.zk import paths

LIST = "/admin/django_zklock/lock/"
NASTY = "<script>alert('1')</script>&\u202egpj.exe\x1b[31m"


def body_of(response: HttpResponseBase) -> str:
    """Return the HTML."""
    assert isinstance(response, HttpResponse)
    return response.content.decode()


def text_of(response: HttpResponseBase) -> str:
    """Return roughly the text that a user sees: tags become spaces."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body_of(response))))


def member(name: str, *codenames: str) -> User:
    """Create a member of staff with only these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def url_of(key: str, alias: str = "default") -> str:
    return reverse("admin:django_zklock_lock_change", args=(quote(f"{alias}/{paths.escape(key)}"),))
