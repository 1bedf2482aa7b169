"""HTML for notebooks: text of other users is always escaped."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from trinitylake.base.markup import TEXT_MAX_LENGTH, Markup, element, escaped, framed, joined, pairs, shown, table

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' onclick='alert(1)",
    "a&lt;b&amp;c",
    "<!-- ",
    "]]>",
    "\x1b[31mred\x1b[0m",
    "user\u202egnp.exe",
    "zero\u200bwidth\u2028line",
    "half \ud800 a pair",
    "\0\x7f\x85",
    "{{7*7}} ${7*7} `x`",
    "z" * 100_000,
)


class Page(HTMLParser):
    """The elements, attributes and text of an HTML page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_hostile_text_becomes_no_element_and_no_attribute() -> None:
    """A hostile text adds no element or attribute to the page. A notebook that listed tables executed a table's name,
    `<script>…`."""
    for place in range(len(HOSTILE)):
        text = HOSTILE[place]
        source = framed(table([text], [[text]], caption=text), pairs([(text, text)]), element("p", text, title=text))
        page = Page(source)
        assert set(page.elements) == {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
        assert set(page.attributes) <= {"class", "scope", "title"}
        source.encode()  # no single surrogate, which a notebook could not save
        assert not any(sign in source for sign in "\0\x1b\x7f\x85\u202e\u200b\u2028")
        assert len(source) < 20_000


@given(st.text(max_size=TEXT_MAX_LENGTH))
def test_values_are_shown_unchanged(text: str) -> None:
    shown_text = Page(str(element("p", text))).text
    kept = "".join(one for one in text if one.isprintable() or one in "\n\t")
    assert all(one in shown_text for one in kept if one not in "\r")
    if text.isprintable():
        assert shown_text == text


def test_markup_is_not_escaped_twice() -> None:
    inner = element("b", "a < b")
    assert isinstance(inner, Markup)
    assert joined(["<", inner]) == "&lt;<b>a &lt; b</b>"
    assert escaped(escaped("<")) == "&lt;"


def test_a_text_that_is_cut_says_how_much_is_missing() -> None:
    assert escaped("x" * (TEXT_MAX_LENGTH + 1234)).endswith("… (+1,234 characters)")


def test_a_table_tells_its_headers_to_a_screen_reader() -> None:
    written = table(["name", "rows"], [["a", 1]], caption="tables", numbers={1})
    assert '<th scope="col">name</th><th class="number" scope="col">rows</th>' in written
    assert '<td class="number">1</td>' in written
    assert "<caption>tables</caption>" in written
    assert '<th scope="row">name</th>' in pairs([("name", "a")])


def test_showing_never_raises() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Handle:
        def __init__(self, error: Exception) -> None:
            self.error = error

        @shown
        def _repr_html_(self) -> str:
            raise self.error

    assert "OSError: &lt;gone&gt;" in Handle(OSError("<gone>"))._repr_html_()
    assert "cannot be shown" in Handle(Unspeakable())._repr_html_()


def test_html_loads_no_external_resource() -> None:
    source = framed("x")
    assert "url(" not in source
    assert "@import" not in source
    assert "http" not in source
