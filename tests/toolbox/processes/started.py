"""What runs in a ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Started:
    """Starts with a ``with`` block and is closed at its end; what has failed to start is closed too."""

    def start(self) -> Self:
        """Start, and return when it can be used."""
        raise NotImplementedError

    def close(self) -> None:
        """End, and leave nothing behind; fine if it has not started."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
