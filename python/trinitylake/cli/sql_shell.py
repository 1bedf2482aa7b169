"""Interactive shell of `trinitylake sql`, with history and completion."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.cli.output import emit_error, emit_failure
from trinitylake.cli.sql_results import Format
from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.printable import printable
from trinitylake.tables.queries.tokens import first_word, tokens_of

if TYPE_CHECKING:
    from trinitylake.cli.sql_results import ResultPrinter
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.lakehouse.transaction import Transaction

HELP = """\
A statement ends with a semicolon and may have several lines; Ctrl-C discards it.
  .tables [NAMESPACE]   tables and views
  .schema NAME          the columns of a table or view
  .version              the current version
  .at [VERSION]         read a version, time or tag; without one, the latest
  .begin [MESSAGE]      begin a transaction; its statements become one version
  .commit, .rollback    end the transaction; also BEGIN, COMMIT and ROLLBACK
  .mode MODE            table, line (each value on its own line), csv or json
  .output [FILE]        print results to a file; without one, to the terminal
  .read FILE            run the statements and commands of a file
  .timing on|off        print the time of each statement
  .help, .quit          also exit and quit
As in psql: \\q, \\x (mode line or table), \\dt, \\d [NAME], \\i FILE, \\o [FILE], \\timing"""
_KEYWORDS = (
    *("AND", "AS", "ASC", "BETWEEN", "BY", "CASE", "CREATE", "DELETE", "DESC", "DISTINCT", "DROP", "ELSE", "END"),
    *("EXISTS", "FROM", "FULL", "GROUP", "HAVING", "IN", "INNER", "INSERT", "INTO", "IS", "JOIN", "LEFT", "LIKE"),
    *("LIMIT", "MATCHED", "MERGE", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER", "REPLACE", "RIGHT", "SCHEMA"),
    *("SELECT", "SET", "TABLE", "THEN", "UNION", "UPDATE", "USING", "VALUES", "VIEW", "WHEN", "WHERE", "WITH"),
)
_COMMANDS = sorted(set(re.findall(r"\.[a-z]+", HELP)))
#: Other spellings of commands.
_ALIASES = {
    "exit": ".quit",
    "quit": ".quit",
    ".exit": ".quit",
    "\\q": ".quit",
    "\\?": ".help",
    "help": ".help",
    "\\x": ".expanded",
    "\\dt": ".tables",
    "\\d": ".schema",
    "\\i": ".read",
    "\\o": ".output",
    "\\timing": ".timing",
}
#: The first words of SQL's transaction statements, and the commands of the shell that are run instead.
_TRANSACTION_WORDS = {
    **dict.fromkeys(("BEGIN", "START"), ".begin"),
    **dict.fromkeys(("COMMIT", "END"), ".commit"),
    **dict.fromkeys(("ROLLBACK", "ABORT"), ".rollback"),
}
#: `BEGIN TRANSACTION` has two words. Longer statements name savepoints or isolation levels, which are not supported.
_TRANSACTION_WORDS_MAX = 2
#: Replaces line breaks of a statement in the history file.
_LINE_BREAK = "\x01"
#: Maximum number of completed names of each kind.
_MAX_NAMES = 10_000
_HISTORY_ENTRIES = 1000
#: Maximum levels of a namespace that SQL can name without quotes.
_PLAIN_LEVELS_MAX = 2


class SqlShell:
    """Runs statements on the latest version, on a fixed version, or in a transaction.

    Args:
        lake: the lakehouse.
        printer: prints results.
        info: message and author of statements that write.
        allow_external: whether queries may read files outside of the lakehouse.
    """

    def __init__(
        self,
        lake: Lakehouse,
        printer: ResultPrinter,
        info: CommitInfo = NO_COMMIT_INFO,
        *,
        allow_external: bool = False,
    ) -> None:
        self._lake = lake
        self._info = info
        self._printer = printer
        self._allow_external = allow_external
        self._past: LakehouseVersion | None = None
        self._transaction: Transaction | None = None
        self._names: tuple[object, dict[str, str | None]] = (None, {})

    @property
    def reader(self) -> Reader:
        """The transaction, version or lakehouse that statements read."""
        if self._transaction is not None:
            return self._transaction
        return self._lake if self._past is None else self._past

    def look_at(self, moment: str) -> None:
        """Let statements read a fixed version. Raises the errors of `Lakehouse.at`."""
        self._past = self._lake.at(moment)

    def run(self, statement: str) -> None:
        """Run one statement and print its rows."""
        name = _TRANSACTION_WORDS.get(first_word(statement))
        if name is not None and len(tokens_of(statement)) <= _TRANSACTION_WORDS_MAX:
            self._command(name, "")
            return
        reader = self.reader
        info = NO_COMMIT_INFO if reader is self._transaction else self._info
        query = reader.sql(statement, allow_external=self._allow_external, message=info.message, author=info.author)
        self._printer.show(query)

    def run_all(self, texts: Iterable[str], *, single_transaction: bool = False) -> None:
        """Run statements and commands until one of them fails.

        Raises the error of the failed statement, or `InvalidArgument` if a transaction is open at the end. An open
        transaction is rolled back.
        """
        try:
            if single_transaction:
                self._command(".begin", "")
            for text in texts:
                self._run_text(text)
            if single_transaction:
                self._command(".commit", "")
            if self._transaction is not None:
                raise InvalidArgument("the input ends in an open transaction: .commit or .rollback is missing")
        finally:
            self._roll_back()

    def _run_text(self, text: str) -> None:
        pending = ""
        for line in text.split("\n"):
            pending = self._read(pending, line)
        if tokens_of(pending):  # there is more than comments
            self.run(pending)

    def run_interactively(self) -> None:
        """Read statements from the terminal until it is closed. An error or Ctrl-C ends only its statement."""
        # After Ctrl-C during the import of NumPy, no later statement of the process could import it.
        import_module("numpy")
        self._prepare_line()
        print("TrinityLake: .help for help, .quit to leave")
        is_open = True
        try:
            while is_open:
                try:
                    self._read_statements()
                    is_open = False
                except KeyboardInterrupt:  # a second Ctrl-C, while the first one was handled
                    continue
        finally:
            self._roll_back()
            self._keep_history()

    def _read_statements(self) -> None:
        pending, entered = "", ""
        while True:
            try:
                line = input(self._prompt(pending))
                entered = f"{entered}\n{line}" if pending else line
                pending = self._read(pending, line)
            except TrinityLakeError as error:
                emit_error(error, as_json=False)
                pending = ""
            except KeyboardInterrupt:
                print()
                pending = entered = ""
            except (EOFError, SystemExit):
                return
            except Exception as error:
                emit_failure("unexpected", f"{type(error).__name__}: {error}", False, {})
                pending = ""
            if not pending:
                self._remember(entered)

    def _prompt(self, pending: str) -> str:
        if pending:
            return "   ...> "
        if self._transaction is not None:
            return "lake*> "
        return "lake> " if self._past is None else f"lake@{self._past.version}> "

    def _read(self, pending: str, line: str) -> str:
        """Run the statements that a line completes; returns the incomplete rest."""
        name, _, argument = line.strip().removesuffix(";").strip().partition(" ")
        name = ".tables" if name == "\\d" and not argument else _ALIASES.get(name.lower(), name)
        if not pending and name.startswith((".", "\\")):
            self._command(name, argument.strip())
            return ""
        text = f"{pending}\n{line}" if pending else line
        *whole, rest = split_statements(text)
        for statement in filter(tokens_of, whole):  # without statements that consist of comments
            self.run(statement)
        return rest

    def _command(self, name: str, argument: str) -> None:
        match name:
            case ".help":
                print(HELP)
            case ".quit":
                raise SystemExit
            case ".mode" if argument in list(Format):
                self._printer.format = Format(argument)
            case ".mode":
                raise InvalidArgument(f".mode takes {', '.join(Format)}; the current mode is {self._printer.format}")
            case ".expanded":
                is_line = self._printer.format is Format.LINE
                self._printer.format = Format.TABLE if is_line else Format.LINE
                print(f"mode {self._printer.format}")
            case ".timing":
                self._printer.is_timed = argument == "on" or (not argument and not self._printer.is_timed)
            case ".output":
                self._printer.redirect(argument)
            case ".read" if argument:
                self._run_text(text_of(argument))
            case ".tables":
                within = argument or None
                for one in sorted([*self.reader.tables(within), *self.reader.views(within)]):
                    print(printable(one))
            case ".schema" if argument:
                query = self.reader.sql(f"SELECT * FROM {argument}")
                width = max(map(len, query.columns))
                for column, type in zip(query.columns, query.types, strict=True):
                    print(f"{printable(column):<{width}}  {printable(type)}")
            case ".version":
                if self._transaction is not None:
                    print(f"{self._transaction.base_version}, in a transaction on it")
                else:
                    print(self._past.version if self._past is not None else self._lake.version)
            case ".at":
                self._require_no_transaction()
                if argument:
                    self.look_at(argument)
                else:
                    self._past = None
            case ".begin":
                self._require_no_transaction()
                if self._past is not None:
                    raise InvalidArgument(
                        "an old version is read-only: use .at without a version to return to the latest"
                    )
                self._transaction = self._lake.begin(message=argument or self._info.message, author=self._info.author)
            case ".commit":
                transaction, self._transaction = self._open(), None
                version = transaction.commit()
                print(f"version {version}", file=sys.stdout if self._printer.is_for_people else sys.stderr)
            case ".rollback":
                transaction, self._transaction = self._open(), None
                transaction.rollback()
            case ".schema" | ".read":
                raise InvalidArgument(f"{name} lacks an argument: see .help")
            case _:
                raise InvalidArgument(f"{printable(name)} is not a command: see .help")

    def _open(self) -> Transaction:
        if self._transaction is None:
            raise InvalidArgument("no transaction is open: use .begin")
        return self._transaction

    def _require_no_transaction(self) -> None:
        if self._transaction is not None:
            raise InvalidArgument("a transaction is open: use .commit or .rollback first")

    def _roll_back(self) -> None:
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            transaction.rollback()
            print("the open transaction was rolled back", file=sys.stderr)

    def candidates(self, line: str, word: str) -> list[str]:
        """Completions of the last word of a line."""
        if line.lstrip().startswith(".") and " " not in line.lstrip():
            return [one for one in _COMMANDS if one.startswith(word)]
        # Compared without quotes, because the user may have typed them or not.
        lower = word.lower().replace('"', "")
        found = [*self._known_names(), *self._columns(line)]
        names = [one for one in found if one.lower().replace('"', "").startswith(lower)]
        keywords = [one if word.isupper() else one.lower() for one in _KEYWORDS if one.lower().startswith(lower)]
        return [*dict.fromkeys(names), *(keywords if word else [])]

    def _known_names(self) -> dict[str, str | None]:
        """Names for completion, as written in SQL. The value of a table or view is its full name, that of a namespace
        None.
        """
        reader = self.reader
        state = (id(reader), getattr(reader, "version", None))
        if self._names[0] != state:
            objects = [*reader.tables(), *reader.views()][:_MAX_NAMES]
            namespaces = [one for one in map(namespace_name, reader.namespaces()) if one is not None]
            written = {name: one for one in objects if (name := object_name(one)) is not None}
            self._names = state, {**written, **{f"{one}.": None for one in namespaces[:_MAX_NAMES]}}
        return self._names[1]

    def _columns(self, line: str) -> list[str]:
        known, reader = self._known_names(), self.reader
        tables = {known.get(one.strip("(),;")) for one in line.split()}
        named = sorted(one for one in tables if one is not None and reader._kind(one) == "table")
        columns = [column_name(name) for one in named for name in reader.table(one).schema.names]
        return [one for one in columns if one is not None]

    def _prepare_line(self) -> None:
        if (readline := _readline()) is None:
            return
        found: list[str] = []

        def complete(word: str, number: int) -> str | None:
            nonlocal found
            if number == 0:
                try:
                    found = self.candidates(readline.get_line_buffer()[: readline.get_endidx()], word)
                except Exception:  # a failed completion must not end the shell
                    found = []
            return found[number] if number < len(found) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" \t\n,()=<>;+-*/")
        readline.parse_and_bind("tab: complete")
        readline.set_auto_history(False)
        with suppress(OSError):
            for entry in history_path().read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
                readline.add_history(entry.replace(_LINE_BREAK, "\n"))

    def _remember(self, entered: str) -> None:
        """Add a statement to the history as one entry, even if it has several lines."""
        if (readline := _readline()) is None or not entered.strip():
            return
        if entered != readline.get_history_item(readline.get_current_history_length()):
            readline.add_history(entered)

    def _keep_history(self) -> None:
        if (readline := _readline()) is None:
            return
        length = readline.get_current_history_length()
        first = max(1, length + 1 - _HISTORY_ENTRIES)
        entries = [readline.get_history_item(place) or "" for place in range(first, length + 1)]
        path = history_path()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text("".join(f"{one.replace(chr(10), _LINE_BREAK)}\n" for one in entries), encoding="utf-8")


def _readline() -> Any:
    """Python's module for line editing; None where Python lacks it, as on Windows."""
    with suppress(ImportError):
        return import_module("readline")
    return None


def history_path() -> Path:
    """The file with the statements of earlier shells."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "trinitylake" / "sql_history"


def split_statements(text: str) -> list[str]:
    """Split SQL into statements that end with a semicolon, and the rest after the last semicolon."""
    with optional_dependency("SQL over a lakehouse"):
        import duckdb
    data = text.encode(errors="replace")
    ends = [start for start, _ in duckdb.tokenize(data.decode()) if data[start : start + 1] == b";"]
    starts = [0, *(end + 1 for end in ends)]
    parts = [data[start:end].decode() for start, end in zip(starts, [*ends, len(data)], strict=True)]
    return [*(one for one in parts[:-1] if one.strip()), parts[-1] if parts[-1].strip() else ""]


# A completed name becomes part of a statement. So completion quotes a name that SQL would read as something else, and
# does not offer a name with characters that are not printable.


def object_name(full_name: str) -> str | None:
    """The name of a table or view in SQL; None if it is not offered."""
    namespace, _, name = full_name.rpartition(".")
    written = namespace_name(namespace), column_name(name)
    return f"{written[0]}.{written[1]}" if written[0] and written[1] else None


def namespace_name(full_name: str) -> str | None:
    """The name of a namespace in SQL; None if it is not offered."""
    levels = full_name.split(".")
    if len(levels) <= _PLAIN_LEVELS_MAX and all(map(_is_plain, levels)):
        return full_name
    return column_name(full_name, is_plain=False)


def column_name(name: str, is_plain: bool | None = None) -> str | None:
    """The name of a column in SQL; None if it is not offered."""
    if not name.isprintable():
        return None
    from trinitylake.tables.sql_sandbox import quoted

    return name if (_is_plain(name) if is_plain is None else is_plain) else quoted(name)


def _is_plain(name: str) -> bool:
    """Whether DuckDB reads a name correctly without quotes."""
    return name.isascii() and name.isidentifier() and name.lower() not in _words()


@cache
def _words() -> frozenset[str]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category != 'unreserved'")
        return frozenset(word for (word,) in found.fetchall())


def text_of(path: str) -> str:
    """The text of a file. Raises `InvalidArgument` if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"cannot read {path}: it is not UTF-8") from None
