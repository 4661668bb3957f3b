"""Sphinx: MyST pages, furo's looks. The build needs no network."""

from __future__ import annotations

import builtins
import re
import sys
from configparser import ConfigParser
from pathlib import Path

import django
from django.conf import settings
from sphinx.pycode import ModuleAnalyzer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.shown_by import find_tests, with_tests  # noqa: E402 - found by the path above

metadata = ConfigParser(interpolation=None)
metadata.read(ROOT / "setup.cfg")

project = "django_zklock"
author = metadata["metadata"]["author"]
project_copyright = author
release = version = metadata["metadata"]["version"]

# autodoc imports models and the admin, so Django must be up.
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django_zklock",
    ],
    ZKLOCK={"default": {"HOSTS": "127.0.0.1:2181"}},
)
django.setup()

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Parameters whose meaning the docstring gives, not each one with a hint.
autodoc_typehints_description_target = "documented"

# Names of other projects would need their inventories from the network. Our own names stay checked.
nitpick_ignore_regex = [
    (r"py:.*", rf"({'|'.join([*sys.stdlib_module_names, 'celery', 'django', 'kazoo', 'opentelemetry'])})\..+"),
    (r"py:.*", "|".join(re.escape(name) for name in dir(builtins))),
]

# Pages that refuse programs, or make their anchors with a script.
linkcheck_anchors = False
linkcheck_ignore = [r"https://hub\.docker\.com/"]

html_theme = "furo"
html_title = f"django_zklock {release}"


def without_overloads(_app):
    """Leave out the signatures that are for type checkers alone: the page has the one of the code."""
    analyzer = ModuleAnalyzer.for_module("django_zklock.decorators")
    analyzer.analyze()
    analyzer.overloads.clear()


def fold_tests(_app, page, source):
    """Add the tests that show a section to its end."""
    source[0] = with_tests(page.rpartition("/")[2], source[0], find_tests())


def setup(app):
    app.connect("builder-inited", without_overloads)
    app.connect("source-read", fold_tests)
