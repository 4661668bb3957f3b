"""The admin in German, on a real ZooKeeper."""

from __future__ import annotations

import ast
import re
from gettext import GNUTranslations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.test import Client
from django.utils.translation import gettext, override

import django_zklock
from tests.toolbox.django.command import Hold, Join
from tests.unit.admin.pages import LIST, text_of, url_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.django.command_fixtures"]

CATALOGUE = Path(django_zklock.__file__).parent / "locale" / "de" / "LC_MESSAGES" / "django"


def entries() -> dict[str, str]:
    """Return each text of the catalogue with its translation."""
    source = CATALOGUE.with_suffix(".po").read_text(encoding="utf-8")
    found = re.findall(r'^msgid (".+")$(?:\nmsgid_plural .+)?\nmsgstr(?:\[0\])? (".*")$', source, flags=re.MULTILINE)
    return {ast.literal_eval(text): ast.literal_eval(translation) for text, translation in found}


@pytest.mark.django_db
def test_pages__german(viewer: Client, hold: Hold, join: Join, settings: Settings) -> None:
    """With German as the project's language the pages are in German."""
    held = hold("account:17")
    join(held)
    settings.LANGUAGE_CODE = "de"
    text = text_of(viewer.get(LIST))
    for words in ("Benutzte Locks", " gehalten ", " exklusiv ", "Nach Zustand", " 1 Lock "):
        assert words in text
    text = text_of(viewer.get(url_of("account:17")))
    for words in ("Gehalten von", "1 Halter. 1 Wartender.", "Warteschlange"):
        assert words in text


def test_catalogue__is_compiled() -> None:
    """The compiled catalogue has every translation."""
    with CATALOGUE.with_suffix(".mo").open("rb") as file:
        compiled = GNUTranslations(file)
    for text, translation in entries().items():
        assert translation
        assert translation in {compiled.gettext(text), compiled.ngettext(text, text, 1)}


def test_catalogue__keeps_the_places_for_values() -> None:
    """A translation has the same placeholders as its text, those of the scripts too."""
    for text, translation in entries().items():
        places = [sorted(re.findall(r"%\(\w+\)s|\{\w+\}", each)) for each in (text, translation)]
        assert places[0] == places[1]


def test_catalogue__is_complete() -> None:
    """Every text of the templates and of the modules has a translation here or in Django's own admin."""
    package = Path(django_zklock.__file__).parent
    patterns = {
        "templates/**/*.html": r'{% translate "([^"]+)" %}',
        "admin/*.py": r'(?:_|gettext|gettext_lazy)\(\s*"([^"]+)"\s*\)|ngettext\(\s*"([^"]+)"',
    }
    texts = {
        "".join(found.groups(""))
        for files, pattern in patterns.items()
        for file in package.glob(files)
        for found in re.finditer(pattern, file.read_text(encoding="utf-8"))
    }
    assert {"Queue", "End the task", "%(n)s held for over an hour"} <= texts
    with override("de"):
        assert {text for text in texts - set(entries()) if gettext(text) == text} == set()
