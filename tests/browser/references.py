"""Pictures compared with references: a changed layout differs, other smoothing of letters does not."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageChops

FOLDER = Path(__file__).with_name("references")
# References are smaller by this factor in both directions, which removes most differences between browsers.
FACTOR = 4
# A point differs if one of its colours does by more than this, of 255.
MAX_LEVEL = 24
# A badge has about thirty points.
MAX_POINTS = 12


def shrink(picture: bytes) -> Image.Image:
    """Return a picture in the size of the references."""
    with Image.open(io.BytesIO(picture)) as image:
        return image.convert("RGB").reduce(FACTOR)


def save_document(picture: bytes, file: Path) -> None:
    """Save a picture for the documents, with fewer colours, which makes it a third as large."""
    with Image.open(io.BytesIO(picture)) as image:
        reduced = image.convert("RGB").quantize(kmeans=3, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def save(picture: bytes, file: Path) -> None:
    """Make a picture the reference."""
    file.parent.mkdir(exist_ok=True)
    shrink(picture).save(file, optimize=True)


def compare(picture: bytes, file: Path) -> str:
    """Return how a picture differs from a reference; nothing if it does not."""
    if not file.exists():
        return f"there is no {file.name}"
    taken = shrink(picture)
    with Image.open(file) as image:
        reference = image.convert("RGB")
    if taken.size != reference.size:
        return f"{file.name} has {reference.size} points, the picture {taken.size}"
    channels = ImageChops.difference(taken, reference).split()
    strongest = ImageChops.lighter(ImageChops.lighter(channels[0], channels[1]), channels[2])
    differing = strongest.point([0] * (MAX_LEVEL + 1) + [255] * (255 - MAX_LEVEL))
    count = differing.histogram()[255]
    return f"{count} points differ from {file.name}, within {differing.getbbox()}" if count > MAX_POINTS else ""
