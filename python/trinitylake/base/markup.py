"""HTML for notebooks: escaping, tables, a frame with colours, and the display of errors.

Anything that is not `Markup` is untrusted text and is escaped. Only this module creates `Markup`. The result has no
script, no event handler and no external resource.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

Owner = TypeVar("Owner")
Item = TypeVar("Item")

#: Maximum number of items that notebooks show.
ITEMS_SHOWN = 200

#: Longer strings are truncated, because a notebook stores its output.
TEXT_MAX_LENGTH = 500
#: Unicode categories of characters that are invisible or change the text around them: control characters, marks of
#: writing direction, line separators, and halves of surrogate pairs, which are not valid UTF-8.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_KEPT = frozenset("\n\t")
#: Elements without content.
_VOID = frozenset({"br", "circle", "line", "path", "rect"})

#: The colours of the theme of JupyterLab or VS Code, or else of the system. The frame sets its own background, so that
#: text is always readable on it.
_STYLE = """\
.trinitylake{--tl-l:#fff;--tl-i:#1f2328;--tl-q:#59636e;--tl-b:#d1d9e0;--tl-a:#0a58ca;--tl-r:#b42318;--tl-g:#1a7f37}
@media (prefers-color-scheme:dark){.trinitylake{--tl-l:#0d1117;--tl-i:#e6edf3;--tl-q:#9da7b1;--tl-b:#3d444d;\
--tl-a:#79b8ff;--tl-r:#ff9a8f;--tl-g:#57d364}}
[data-jp-theme-light="true"] .trinitylake{--tl-q:#59636e;--tl-a:#0a58ca;--tl-r:#b42318;--tl-g:#1a7f37}
[data-jp-theme-light="false"] .trinitylake,.vscode-dark .trinitylake,html[theme=dark] .trinitylake\
{--tl-q:#9da7b1;--tl-a:#79b8ff;--tl-r:#ff9a8f;--tl-g:#57d364}
.trinitylake{background:var(--jp-layout-color0,var(--vscode-editor-background,var(--tl-l)));\
color:var(--jp-content-font-color1,var(--vscode-editor-foreground,var(--tl-i)));\
font:13px/1.45 system-ui,sans-serif;padding:.4em .6em;overflow-x:auto}
.trinitylake table{border-collapse:collapse;margin:.3em 0;font:inherit;color:inherit;background:none}
.trinitylake caption{text-align:left;font-weight:600;padding:.2em 0}
div.trinitylake th,div.trinitylake td{text-align:left;padding:.15em .7em .15em 0;vertical-align:top;\
border-bottom:1px solid var(--jp-border-color2,var(--vscode-panel-border,var(--tl-b)));overflow-wrap:anywhere;\
background:none;max-width:40em}
.trinitylake thead th{overflow-wrap:break-word}
div.trinitylake .number{text-align:right;font-variant-numeric:tabular-nums}
.trinitylake .quiet{color:var(--tl-q)}
.trinitylake .problem{color:var(--tl-r)}
.trinitylake .title{font-weight:600}"""


class Markup(str):
    """HTML from this module, which `escaped` does not escape again."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Escape the string of a value for HTML, and truncate it to `TEXT_MAX_LENGTH` characters.

    Invisible characters and marks of writing direction are written as in Python: `\\x1b`, `\\u202e`.
    """
    if isinstance(value, Markup):
        return value
    given = str(value)
    rest = len(given) - TEXT_MAX_LENGTH
    text = given if rest <= 0 else f"{given[:TEXT_MAX_LENGTH]}… (+{rest:,} characters)"
    from html import escape  # slow to import

    return Markup(escape("".join(map(_visible, text)), quote=True))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An HTML element. `class_` stands for the attribute `class`, and `_` in other names for `-`.

    Children and values of attributes are escaped.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"' for name, value in attributes.items() if value != ""
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{joined(children)}</{tag}>")


def joined(parts: Iterable[object]) -> Markup:
    """Concatenate the escaped parts."""
    return Markup("".join(map(escaped, parts)))


def table(
    headers: Sequence[object], rows: Iterable[Sequence[object]], *, caption: object = "", numbers: Collection[int] = ()
) -> Markup:
    """A table with headers for screen readers; the columns at `numbers` are aligned to the right."""

    def line(tag: str, cells: Sequence[object], **attributes: object) -> Markup:
        kinds = ("number" if place in numbers else "" for place in range(len(cells)))
        inner = (element(tag, cell, class_=kind, **attributes) for cell, kind in zip(cells, kinds, strict=True))
        return element("tr", *inner)

    head = element("thead", line("th", headers, scope="col"))
    body = element("tbody", *(line("td", row) for row in rows))
    return element("table", *([element("caption", caption)] if caption != "" else []), head, body)


def pairs(rows: Iterable[tuple[object, object]], *, caption: object = "") -> Markup:
    """A table of names and values; the names are row headers."""
    lines = (element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows)
    return element("table", *([element("caption", caption)] if caption != "" else []), element("tbody", *lines))


def listed(names: Sequence[str], is_cut: bool) -> Markup:
    """Names of objects, separated by commas."""
    if not names:
        return element("span", "none", class_="quiet")
    more = element("span", " and more", class_="quiet") if is_cut else Markup("")
    return joined([", ".join(names), more])


def heading(kind: str, name: str, note: str = "") -> Markup:
    """The title of a representation: the kind of the handle, its name, and a note."""
    quiet = element("span", f" {note}", class_="quiet") if note else Markup("")
    return element("div", f"{kind} {name}".rstrip(), quiet, class_="title")


def utc_text(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def framed(*parts: object) -> str:
    """Parts in a frame with colours, the result of `_repr_html_`."""
    return str(element("div", Markup(f"<style>{_STYLE}</style>"), *parts, class_="trinitylake"))


def shown(draw: Callable[[Owner], str]) -> Callable[[Owner], str]:
    """Decorator for `_repr_html_`: the method shows an error instead of raising it."""

    @functools.wraps(draw)
    def run(self: Owner) -> str:
        try:
            return draw(self)
        except Exception as error:
            return framed(
                element("div", type(self).__name__, class_="title"),
                element("div", f"{type(error).__name__}: {_words_of(error)}", class_="problem"),
            )

    return run


class ShownList(list[Item]):
    """A list that notebooks show as a table.

    Args:
        items: the items.
        title: heading of the table.
        headers: headings of the columns.
        cells: returns the cells of an item; a module-level function, so that the list can be pickled.
        numbers: indexes of the columns with numbers.
    """

    def __init__(
        self,
        items: Iterable[Item],
        title: str,
        headers: Sequence[str],
        cells: Callable[[Item], Sequence[object]],
        numbers: Collection[int] = (),
    ) -> None:
        super().__init__(items)
        self._shown_as = title, headers, cells, numbers

    def __reduce__(self) -> tuple[type[ShownList[Item]], tuple[Any, ...]]:
        return ShownList, (list(self), *self._shown_as)

    @shown
    def _repr_html_(self) -> str:
        title, headers, cells, numbers = self._shown_as
        some = self[:ITEMS_SHOWN]
        note = f"{len(self):,}" if len(some) == len(self) else f"the first {len(some)} of {len(self):,}"
        return framed(heading(title, "", note), table(headers, map(cells, some), numbers=numbers))


def _words_of(error: Any) -> str:
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown"


def _visible(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if character in _KEPT or unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
