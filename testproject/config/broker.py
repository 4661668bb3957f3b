"""kombu's filesystem transport, with folders that make themselves and messages that appear whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from kombu.transport import filesystem


class Channel(filesystem.Channel):
    """A channel that writes each message where no consumer looks, then puts it in its place.

    kombu's own writes it in its place, and a consumer that finds it between ``open`` and ``write`` takes an
    empty message, which ends the worker.
    """

    def __init__(self, connection: filesystem.Transport, **options: Any) -> None:
        """Make the folders."""
        super().__init__(connection, **options)
        for folder in (self.data_folder_in, self.data_folder_out, self.control_folder):
            Path(folder).mkdir(parents=True, exist_ok=True)

    # The stubs of the two base classes disagree about the second argument's name.
    def _put(self, queue: str, payload: dict[str, Any], **options: Any) -> None:  # type: ignore[override]
        place = self.data_folder_out
        # Inside the place itself, so that the move is one step.
        with tempfile.TemporaryDirectory(dir=place, prefix=".") as draft:
            self.data_folder_out = draft
            try:
                super()._put(queue, payload, **options)
            finally:
                self.data_folder_out = place
            for file in Path(draft).iterdir():
                file.rename(Path(place, file.name))


class Transport(filesystem.Transport):
    """The filesystem transport with the channel above."""

    Channel = Channel
