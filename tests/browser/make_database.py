"""A program that creates the database of a site with a superuser; the password is the name."""

from __future__ import annotations

import django
from django.core.management import call_command


def furnish() -> None:
    from django.contrib.auth.models import User

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("root", password="root")


if __name__ == "__main__":
    django.setup()
    furnish()
