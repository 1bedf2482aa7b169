"""The grammar of SQL types: `"numeric(10,2)"`, `"array<int>"`, `"row(a int, b map<varchar, double precision>)"`.

It accepts the types of Postgres, Trino and Spark. `sql_types.parse_type` makes a `Type` of the parsed words, and checks
lengths and precisions; `str(type)` is the inverse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NoReturn, TypeAlias, TypeVar

from trinitylake.errors import InvalidArgument

#: Kinds of the format by SQL name. Of several names that match, the longest is meant.
ALIASES = {
    "bool": "boolean",
    "boolean": "boolean",
    "int2": "smallint",
    "smallint": "smallint",
    "short": "smallint",
    "tinyint": "smallint",
    "byte": "smallint",
    "int4": "int",
    "int": "int",
    "integer": "int",
    "int32": "int",
    "int8": "bigint",
    "bigint": "bigint",
    "long": "bigint",
    "int64": "bigint",
    "decimal": "decimal",
    "numeric": "decimal",
    "dec": "decimal",
    "number": "decimal",
    "float4": "real",
    "real": "real",
    "float": "real",
    "float32": "real",
    "float8": "double",
    "double": "double",
    "double precision": "double",
    "float64": "double",
    "char": "char",
    "character": "char",
    "bpchar": "char",
    "varchar": "varchar",
    "character varying": "varchar",
    "char varying": "varchar",
    "text": "varchar",
    "string": "varchar",
    "date": "date",
    "time": "time",
    "time without time zone": "time",
    "timetz": "timetz",
    "time with time zone": "timetz",
    "timestamp": "timestamp",
    "datetime": "timestamp",
    "timestamp without time zone": "timestamp",
    "timestamp_ntz": "timestamp",
    "timestamp_ns": "timestamp_ns",
    "timestamptz": "timestamptz",
    "timestamp with time zone": "timestamptz",
    "timestamp_ltz": "timestamptz",
    "fixed": "fixed",
    "binary": "binary",
    "bytea": "binary",
    "varbinary": "binary",
    "blob": "binary",
    "bytes": "binary",
    "uuid": "uuid",
    "array": "list",
    "list": "list",
    "map": "map",
    "row": "struct",
    "struct": "struct",
}
T = TypeVar("T")

#: Maximum number of levels of nested types. Arrow passes at most 64 levels to other libraries, and Parquet files have
#: at most 100 levels. A map takes 2 or 3 of these levels.
MAX_DEPTH = 30
MAX_TEXT_LENGTH = 65536

_TOKEN = re.compile(
    r'\s*(?:(?P<number>\d+)|(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<mark>[(),:<>\[\]]))'
)
_CLOSING = {"(": ")", "<": ">"}
_FIRST_WORDS = {alias.split()[0] for alias in ALIASES if " " in alias}
#: Function that builds a type from its kind (a value of `ALIASES`), the numbers in parentheses, and its parts: the
#: fields of a struct, the key and value of a map, or the element of a list. A part is a tuple of name, type and
#: whether it may be null.
Build: TypeAlias = Callable[[str, Sequence[int], Sequence[tuple[str, T, bool]]], T]


def check_depth(parts: Iterable[T], parts_of: Callable[[T], Iterable[T]], most: int = MAX_DEPTH) -> None:
    """Raise `InvalidArgument` if a type is nested too deeply.

    `parts` are the parts of the type, and `parts_of` returns the parts of a part.
    """
    level, depth = list(parts), 0
    while level:
        if (depth := depth + 1) > most:
            raise InvalidArgument(f"a type is nested in more than {MAX_DEPTH} levels")
        level = [inner for part in level for inner in parts_of(part)]


def parse(text: str, build: Build[T], uuid: T) -> T:
    """Parse a type. The result for the type uuid, which is not a kind of the format, is `uuid`.

    Raises `InvalidArgument` with the invalid word and its position.
    """
    return _Parser(text, build, uuid).parse()


class _Parser(Generic[T]):
    def __init__(self, text: str, build: Build[T], uuid: T) -> None:
        self.text = text
        self.build = build
        self.uuid = uuid
        self.tokens: list[tuple[str, str, int]] = []  # (group of _TOKEN, text, position)
        self.position = 0
        if len(text) > MAX_TEXT_LENGTH:
            raise InvalidArgument(f"a type of {len(text)} characters is over the limit of {MAX_TEXT_LENGTH}")
        offset = 0
        end = len(text.rstrip())
        while offset < end:
            match = _TOKEN.match(text, offset)
            if match is None:
                raise InvalidArgument(f"cannot read the type {text!r} at position {offset}: {text[offset]!r}")
            group = str(match.lastgroup)
            self.tokens.append((group, match[group], match.start(group)))
            offset = match.end()

    def parse(self) -> T:
        result = self.read_type(0)
        if self.position < len(self.tokens):
            self.fail(f"unexpected {self.peek()!r}")
        return result

    def read_type(self, depth: int) -> T:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        kind = self.read_kind()
        if kind == "list":
            type = self.read_list(depth)
        elif kind == "map":
            type = self.read_map(depth)
        elif kind == "struct":
            type = self.read_struct(depth)
        else:
            type = self.simple(kind, self.read_arguments())
        while self.accept("["):
            self.expect("]")
            type = self.build("list", (), [("element", type, True)])
        return type

    def read_kind(self) -> str:
        start = self.position
        group, word, _ = self.next()
        if group != "word":
            self.fail(f"expected a type, found {word!r}", start)
        word = word.lower()
        if word in _FIRST_WORDS:  # the longest alias wins: "timestamp(3) with time zone" is completed in `simple`
            for length in (4, 3, 2):
                words = [token[1].lower() for token in self.tokens[start : start + length]]
                if " ".join(words) in ALIASES and len(words) == length:
                    self.position = start + length
                    return ALIASES[" ".join(words)]
        kind = ALIASES.get(word)
        if kind is None:
            self.fail(f"unknown type {word!r}", start)
        return kind

    def read_arguments(self) -> list[int]:
        if not self.accept("("):
            return []
        arguments = []
        while True:
            group, word, _ = self.next()
            if group != "number" or len(word) > 10:
                self.fail(f"expected a number, found {word!r}", self.position - 1)
            arguments.append(int(word))
            if not self.accept(","):
                break
        self.expect(")")
        return arguments

    def simple(self, kind: str, arguments: list[int]) -> T:
        most = 2 if kind == "decimal" else 0 if kind in _WITHOUT_ARGUMENTS else 1
        if len(arguments) > most:
            self.fail(f"{kind} takes {most or 'no'} argument{'s' if most == 2 else ''}, not {len(arguments)}")
        if kind == "uuid":
            return self.uuid
        if kind == "timestamp_ns":
            kind, arguments = "timestamp", [9]
        elif kind in ("time", "timestamp"):
            if self.accept("with", "time", "zone") or self.accept("with", "local", "time", "zone"):
                kind += "tz"
            else:
                self.accept("without", "time", "zone")
        if arguments == [0] and kind in ("time", "timetz", "timestamp", "timestamptz"):
            self.fail(f"{kind}(0) is not supported: use {kind}(3) or finer, or bigint")
        if arguments == [0] and kind != "decimal":
            self.fail(f"{kind}(0) is not supported: a length is at least 1")
        return self.build(kind, arguments, ())

    def read_list(self, depth: int) -> T:
        closing = self.open()
        element = "element", self.read_type(depth + 1), self.read_nullable()
        self.expect(closing)
        return self.build("list", (), [element])

    def read_map(self, depth: int) -> T:
        closing = self.open()
        key = "key", self.read_type(depth + 1), False
        self.accept("not", "null")
        self.expect(",")
        value = "value", self.read_type(depth + 1), self.read_nullable()
        self.expect(closing)
        return self.build("map", (), [key, value])

    def read_struct(self, depth: int) -> T:
        closing = self.open()
        fields: list[tuple[str, T, bool]] = []
        while not self.accept(closing):
            if fields:
                self.expect(",")
            group, name, _ = self.next()
            if group == "quoted":
                name = name[1:-1].replace(name[0] * 2, name[0])
            elif group != "word":
                self.fail(f"expected a field name, found {name!r}", self.position - 1)
            self.accept(":")
            fields.append((name, self.read_type(depth + 1), self.read_nullable()))
        return self.build("struct", (), fields)

    def read_nullable(self) -> bool:
        return not self.accept("not", "null")

    def open(self) -> str:
        mark = self.next()[1]
        if mark not in _CLOSING:
            self.fail(f"expected '<' or '(', found {mark!r}", self.position - 1)
        return _CLOSING[mark]

    def next(self) -> tuple[str, str, int]:
        if self.position >= len(self.tokens):
            self.fail("the type is incomplete")
        self.position += 1
        return self.tokens[self.position - 1]

    def peek(self) -> str:
        return self.tokens[self.position][1]

    def accept(self, *words: str) -> bool:
        found = self.tokens[self.position : self.position + len(words)]
        if [token[1].lower() for token in found if token[0] != "quoted"] != list(words):
            return False
        self.position += len(words)
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            found = repr(self.peek()) if self.position < len(self.tokens) else "the end"
            self.fail(f"expected {mark!r}, found {found}")

    def fail(self, reason: str, token: int | None = None) -> NoReturn:
        token = self.position if token is None else token
        where = f" at position {self.tokens[token][2]}" if token < len(self.tokens) else ""
        raise InvalidArgument(f"cannot read the type {self.text!r}{where}: {reason}")


_WITHOUT_ARGUMENTS = ("boolean", "smallint", "int", "bigint", "real", "double", "date", "uuid", "timestamp_ns")
