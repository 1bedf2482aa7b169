"""What notebooks show of a lakehouse, as HTML (`markup.py`): given what was read, nothing is read here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Protocol

from trinitylake.base.markup import Markup, element, joined, table

#: More versions than these make no picture that anybody can read.
DRAWN_VERSIONS = 40
_ROW_HEIGHT, _LEFT, _TOP = 26, 18, 16


class Transaction(Protocol):
    """What the log tells of one transaction, as far as it is shown."""

    @property
    def properties(self) -> Mapping[str, str]: ...


class Entry(Protocol):
    """One version, as far as it is shown."""

    @property
    def version(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def rollback_from(self) -> int | None: ...
    @property
    def transactions(self) -> Sequence[Transaction]: ...
    @property
    def problem(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def author(self) -> str: ...


def log_picture(entries: Sequence[Entry], names: Mapping[int, Sequence[str]]) -> Markup:
    """Versions from the newest down, with an arrow from each rollback to where it went back, and the names of versions.

    A graphic for the eye, whose title tells the same in words.
    """
    shown = entries[:DRAWN_VERSIONS]
    if not shown:
        return Markup("")
    place = {entry.version: _TOP + row * _ROW_HEIGHT for row, entry in enumerate(shown)}
    parts: list[Markup] = []
    for entry, following in pairwise(shown):
        y, below = place[entry.version], place[following.version]
        is_gap = entry.rollback_from is not None or following.version != entry.version - 1
        dashes = "2 3" if is_gap else ""
        line = {"x1": _LEFT, "y1": y, "x2": _LEFT, "y2": below}
        parts.append(element("line", **line, stroke_dasharray=dashes, style="stroke:var(--tl-q)"))
    for entry in shown:
        y = place[entry.version]
        colour = "var(--tl-r)" if entry.problem else "var(--tl-a)" if entry.version in names else "var(--tl-q)"
        target = target_of(entry)
        if target in place:
            end, reach, tip = place[target], _LEFT + 30, _LEFT + 7
            curve = f"M {_LEFT + 6} {y} C {reach} {y}, {reach} {end}, {tip} {end}"
            head = f"M {tip + 6} {end - 4} L {tip} {end} L {tip + 6} {end + 4}"
            parts += [element("path", d=d, fill="none", style="stroke:var(--tl-r)") for d in (curve, head)]
        parts.append(element("circle", cx=_LEFT, cy=y, r=5, style=f"fill:{colour}"))
        parts.append(element("text", _words(entry, names), x=_LEFT + 36, y=y + 4, style="fill:currentColor"))
    height = 2 * _TOP + (len(shown) - 1) * _ROW_HEIGHT
    return element(
        "svg",
        element("title", _told(shown, names)),
        *parts,
        role="img",
        width=560,
        height=height,
        viewBox=f"0 0 560 {height}",
        font_size=12,
    )


def log_table(entries: Iterable[Entry], names: Mapping[int, Sequence[str]]) -> Markup:
    """The same as a table."""

    def row(entry: Entry) -> tuple[object, ...]:
        went_back = "" if entry.rollback_from is None else f"rollback of {entry.rollback_from}"
        if went_back and (target := target_of(entry)) is not None:
            went_back = f"rollback to {target}"
        notes = [*(names.get(entry.version, ())), *([went_back] if went_back else [])]
        what = element("span", entry.problem, class_="problem") if entry.problem else entry.message
        return entry.version, when(entry.created_at), entry.author, what, entry.summary, ", ".join(notes)

    return table(("version", "when", "author", "message", "what it did", "notes"), map(row, entries), numbers={0})


def target_of(entry: Entry) -> int | None:
    """The version that a rollback went back to, if the log says it."""
    for transaction in entry.transactions:
        target = transaction.properties.get("trinitylake.rollback-target", "")
        if target.isdecimal():
            return int(target)
    return None


def listed(names: Sequence[str], is_cut: bool) -> Markup:
    """Names of objects, one behind the other."""
    if not names:
        return element("span", "none", class_="quiet")
    more = element("span", " and more", class_="quiet") if is_cut else Markup("")
    return joined([", ".join(names), more])


def heading(kind: str, name: str, note: str = "") -> Markup:
    """What a handle is, above what it shows."""
    quiet = element("span", f" {note}", class_="quiet") if note else Markup("")
    return element("div", f"{kind} {name}".rstrip(), quiet, class_="title")


def when(time: datetime) -> str:
    """A time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _words(entry: Entry, names: Mapping[int, Sequence[str]]) -> Markup:
    text = entry.problem or (entry.message or entry.summary).partition("\n")[0]
    kept = [f"[{name}]" for name in names.get(entry.version, ())]
    words = " ".join([str(entry.version), *kept, text])
    return element("tspan", words if len(words) <= 70 else words[:69] + "…")


def _told(entries: Sequence[Entry], names: Mapping[int, Sequence[str]]) -> str:
    told = [f"Versions {entries[-1].version} to {entries[0].version}."]
    for entry in entries:
        if (target := target_of(entry)) is not None and entry.rollback_from is not None:
            told.append(f"Version {entry.version} went back to version {target}.")
        told += [f"Version {entry.version} has the name {name}." for name in names.get(entry.version, ())]
        if entry.problem:
            told.append(f"Version {entry.version} cannot be read.")
    return " ".join(told)
