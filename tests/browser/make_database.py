"""A program that creates the database of a site with a user for each role; the password is the name."""

from __future__ import annotations

import django
from django.core.management import call_command

# The permissions of each user; "root" is a superuser.
PERMISSIONS = {"viewer": ["view_lock"]}


def furnish() -> None:
    from django.contrib.auth.models import Permission, User

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("root", password="root")
    for name, codenames in PERMISSIONS.items():
        user = User.objects.create_user(name, password=name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))


if __name__ == "__main__":
    django.setup()
    furnish()
