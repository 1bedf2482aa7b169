"""Parts of the HTML representations of handles in notebooks (`base/markup.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from trinitylake.base.markup import Markup, element, joined


def listed(names: Sequence[str], is_cut: bool) -> Markup:
    """Names of objects, separated by commas."""
    if not names:
        return element("span", "none", class_="quiet")
    more = element("span", " and more", class_="quiet") if is_cut else Markup("")
    return joined([", ".join(names), more])


def heading(kind: str, name: str, note: str = "") -> Markup:
    """The title of a representation: what the handle is, its name, and a note."""
    quiet = element("span", f" {note}", class_="quiet") if note else Markup("")
    return element("div", f"{kind} {name}".rstrip(), quiet, class_="title")


def utc_text(time: datetime) -> str:
    """A time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")
