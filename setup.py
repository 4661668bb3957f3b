"""The part of the metadata that setup.cfg cannot express; everything else is there."""

import re
from pathlib import Path

from setuptools import setup

PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")


def description() -> str:
    """Return the README without pictures and links to files of the repository, which a package index does not have."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return LINK.sub(r"\1", PICTURE.sub("", text))


setup(long_description=description(), long_description_content_type="text/markdown")
