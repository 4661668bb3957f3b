"""A user at a browser, with checks of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from django.contrib.admin.utils import quote
from playwright.sync_api import ConsoleMessage, Locator, Page, Request, ViewportSize

from django_zklock.zk import paths
from tests.toolbox.timing import scaled

LIST = "/admin/django_zklock/lock/"
WIDE: ViewportSize = {"width": 1280, "height": 640}
MEDIUM: ViewportSize = {"width": 768, "height": 1024}
NARROW: ViewportSize = {"width": 390, "height": 844}
SIZES = {"wide": WIDE, "medium": MEDIUM, "narrow": NARROW}
# Of a laptop.
SCREEN: ViewportSize = {"width": 1280, "height": 800}
HERE = Path(__file__).parent
AUDIT = (HERE / "audit.js").read_text(encoding="utf-8")
TOUR = (HERE / "tour.js").read_text(encoding="utf-8")
DAMAGE = (HERE / "damage.js").read_text(encoding="utf-8")
# More than the controls of any page.
MANY = 300
CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
MISSED = "(all) => all.filter((each) => !('reached' in each.dataset)).map((each) => each.outerHTML.slice(0, 120))"
STILL = "() => document.getAnimations().every((each) => each.playState !== 'running')"
# Milliseconds, for every wait on a page; the first page of a site takes a second, and a browser that starts beside it
# has more processes than the machine has cores.
TIMEOUT = scaled(45_000)


def page_of(key: str) -> str:
    """Return the address of the page of a lock."""
    return f"{LIST}{quote(f'default/{paths.escape(key)}')}/change/"


def rows_on_a_screen(page: Page) -> float:
    """Return how many rows of the list, each as high as the highest one, can be seen without scrolling."""
    page.set_viewport_size(SCREEN)
    boxes = [box for row in page.locator("#zklock-list tbody tr").all() if (box := row.bounding_box()) is not None]
    return float(SCREEN["height"] - boxes[0]["y"]) / max(box["height"] for box in boxes)


class Visitor:
    """A user at a page.

    ``complaints`` are the errors of scripts and of the console, and requests to other hosts.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(TIMEOUT)
        page.on("request", self._requested)
        page.on("console", self._written)
        page.on("pageerror", lambda error: self._complain(f"error: {error}"))

    def log_in(self, name: str) -> None:
        """Log in by the form; the password is the name."""
        self.page.goto("/admin/login/")
        # By their names in the form: the texts are in the language of the site.
        self.page.locator("[name=username]").fill(name)
        self.page.locator("[name=password]").fill(name)
        self.page.locator("#login-form [type=submit]").click()
        self.page.wait_for_url("**/admin/")

    def looks(self) -> Iterator[str]:
        """Show the page in every width, in light and dark, and yield the name of each look.

        On a wide and a medium screen the sidebar is open.
        """
        for width, size in SIZES.items():
            self.page.set_viewport_size(size)
            for dark in (False, True):
                self.page.emulate_media(color_scheme="dark" if dark else "light")
                # Changes of colour are animated.
                self.page.wait_for_function(STILL)
                yield f"{width}-{'dark' if dark else 'light'}"

    def audit(self, part: str = "#content") -> list[str]:
        """Return the barriers for users with impaired vision in a part of the page."""
        found: list[str] = self.page.locator(part).evaluate(AUDIT)
        return found

    def tour(self, part: str = "#content") -> list[str]:
        """Press Tab through the page; return the controls that were not reached or showed no focus."""
        found: list[str] = []
        self._skip_to_content()
        for _ in range(MANY):
            self.page.keyboard.press("Tab")
            stop = self.page.evaluate(TOUR)
            if stop["unmarked"]:
                found.append(f"no focus to be seen: {stop['unmarked']}")
            if stop["over"]:
                break
        controls = self.page.locator(part).locator(CONTROLS).locator("visible=true")
        missed: list[str] = controls.evaluate_all(MISSED)
        found.extend(f"not reached: {control}" for control in missed)
        return found

    def tab_to(self, control: Locator) -> None:
        """Press the Tab key until ``control`` has the focus."""
        self._skip_to_content()
        for _ in range(MANY):
            self.page.keyboard.press("Tab")
            if control.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"the Tab key does not come to {control}")

    def _skip_to_content(self) -> None:
        """Follow the first link of each admin page, which skips to the content."""
        self.page.get_by_role("link", name="Skip to main content").press("Enter")

    def damage(self) -> list[str]:
        """Return the effects of hostile text: executed scripts and broken layout."""
        found: list[str] = self.page.evaluate(DAMAGE)
        return found

    def close(self) -> None:
        self.page.close()
        assert not self.complaints, self.complaints

    def _requested(self, request: Request) -> None:
        address = urlsplit(request.url)
        if f"{address.scheme}://{address.netloc}" != self.url and address.scheme not in {"data", "blob"}:
            self._complain(f"request to {request.url}")

    def _written(self, message: ConsoleMessage) -> None:
        url = message.location["url"]
        # The test project has no icon, and browsers request one.
        if message.type == "error" and not url.endswith("/favicon.ico"):
            self._complain(f"console: {message.text} ({url})")

    def _complain(self, what: str) -> None:
        self.complaints.append(what)
