"""Interactive shell of `trinitylake sql`, with history and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.cli.output import emit_error
from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.printable import printable

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.tables.queries.query import Query

HELP = """\
A statement ends with a semicolon and may have several lines; Ctrl-C discards it.
  .tables [NAMESPACE]   tables and views
  .schema NAME          the columns of a table or view
  .version              the current version
  .at [VERSION]         read a version, time or tag; without one, the latest
  .begin [MESSAGE]      begin a transaction; its statements become one version
  .commit, .rollback    end the transaction
  .help, .quit"""
_KEYWORDS = (
    *("AND", "AS", "ASC", "BETWEEN", "BY", "CASE", "CREATE", "DELETE", "DESC", "DISTINCT", "DROP", "ELSE", "END"),
    *("EXISTS", "FROM", "FULL", "GROUP", "HAVING", "IN", "INNER", "INSERT", "INTO", "IS", "JOIN", "LEFT", "LIKE"),
    *("LIMIT", "MATCHED", "MERGE", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER", "REPLACE", "RIGHT", "SCHEMA"),
    *("SELECT", "SET", "TABLE", "THEN", "UNION", "UPDATE", "USING", "VALUES", "VIEW", "WHEN", "WHERE", "WITH"),
)
_COMMANDS = (".at", ".begin", ".commit", ".help", ".quit", ".rollback", ".schema", ".tables", ".version")
#: At most so many names are offered.
_MAX_NAMES = 10_000
_HISTORY_LINES = 1000
#: A namespace with more levels is quoted in SQL.
_PLAIN_LEVELS_MAX = 2


class SqlShell:
    """Runs statements on the latest version, on a fixed version, or in a transaction.

    Args:
        lake: the lakehouse.
        show: prints the rows of a query.
        info: message and author of statements that write.
        allow_external: whether queries may read files outside of the lakehouse.
    """

    def __init__(
        self,
        lake: Lakehouse,
        show: Callable[[Query], None],
        info: CommitInfo = NO_COMMIT_INFO,
        *,
        allow_external: bool = False,
    ) -> None:
        self._lake = lake
        self._info = info
        self._show = show
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
        """Read a fixed version. Raises as `Lakehouse.at` does."""
        self._past = self._lake.at(moment)

    def run(self, statement: str) -> None:
        """Run one statement and print its rows."""
        reader = self.reader
        info = NO_COMMIT_INFO if reader is self._transaction else self._info
        self._show(reader.sql(statement, allow_external=self._allow_external, message=info.message, author=info.author))

    def run_all(self, text: str) -> None:
        """Run statements and commands up to the first that fails.

        Raises its error, or `InvalidArgument` if the text ends in an open transaction, which is rolled back.
        """
        try:
            pending = ""
            for line in text.splitlines():
                pending = self._read(pending, line)
            if pending.strip():
                self.run(pending)
            if self._transaction is not None:
                raise InvalidArgument("the input ends in an open transaction: .commit or .rollback is missing")
        finally:
            self._roll_back()

    def talk(self) -> None:
        """Read statements from the terminal until it is closed."""
        self._prepare_line()
        print("TrinityLake: .help for help, .quit to leave")
        pending = ""
        while True:
            try:
                pending = self._read(pending, input(self._prompt(pending)))
            except TrinityLakeError as error:
                emit_error(error, as_json=False)
                pending = ""
            except KeyboardInterrupt:
                print()
                pending = ""
            except (EOFError, SystemExit):
                break
        self._roll_back()
        self._keep_history()

    def _prompt(self, pending: str) -> str:
        if pending:
            return "   ...> "
        if self._transaction is not None:
            return "lake*> "
        return "lake> " if self._past is None else f"lake@{self._past.version}> "

    def _read(self, pending: str, line: str) -> str:
        """Run the statements that a line completes; returns the incomplete rest."""
        if not pending and line.lstrip().startswith("."):
            name, _, argument = line.strip().partition(" ")
            self._command(name, argument.strip())
            return ""
        text = f"{pending}\n{line}" if pending else line
        *whole, rest = split_statements(text)
        for statement in whole:
            self.run(statement)
        return rest

    def _command(self, name: str, argument: str) -> None:
        match name:
            case ".help":
                print(HELP)
            case ".quit" | ".exit":
                raise SystemExit
            case ".tables":
                within = argument or None
                for one in sorted([*self.reader.tables(within), *self.reader.views(within)]):
                    print(printable(one))
            case ".schema" if argument:
                query = self.reader.sql(f"SELECT * FROM {argument}")
                width = max(map(len, query.columns))
                for column, type in zip(query.columns, query.types, strict=True):
                    print(f"{printable(column):<{width}}  {type}")
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
                print(f"version {transaction.commit()}")
            case ".rollback":
                transaction, self._transaction = self._open(), None
                transaction.rollback()
            case _:
                raise InvalidArgument(f"{printable(name)} is not a command, or lacks an argument: see .help")

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
        # The user may have typed quotes or not.
        lower = word.lower().replace('"', "")
        found = [*self._known_names(), *self._columns(line)]
        names = [one for one in found if one.lower().replace('"', "").startswith(lower)]
        keywords = [one if word.isupper() else one.lower() for one in _KEYWORDS if one.lower().startswith(lower)]
        return [*dict.fromkeys(names), *(keywords if word else [])]

    def _known_names(self) -> dict[str, str | None]:
        """Names as written in SQL, with the full names of tables and views."""
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
        if sys.platform == "win32":
            return  # it has no readline
        try:
            import readline
        except ImportError:
            return
        found: list[str] = []

        def complete(word: str, number: int) -> str | None:
            nonlocal found
            if number == 0:
                try:
                    found = self.candidates(readline.get_line_buffer()[: readline.get_endidx()], word)
                except TrinityLakeError:
                    found = []
            return found[number] if number < len(found) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" \t\n,()=<>;+-*/")
        readline.parse_and_bind("tab: complete")
        path = history_path()
        if path.exists():
            readline.read_history_file(path)

    def _keep_history(self) -> None:
        if sys.platform == "win32":
            return
        try:
            import readline

            path = history_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.set_history_length(_HISTORY_LINES)
            readline.write_history_file(path)
        except (ImportError, OSError):
            return


def history_path() -> Path:
    """File of the lines of earlier shells."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "trinitylake" / "sql_history"


def split_statements(text: str) -> list[str]:
    """Split a text into statements that end with a semicolon, and the rest after the last semicolon."""
    with optional_dependency("SQL over a lakehouse"):
        import duckdb
    data = text.encode(errors="replace")
    ends = [start for start, _ in duckdb.tokenize(data.decode()) if data[start : start + 1] == b";"]
    starts = [0, *(end + 1 for end in ends)]
    parts = [data[start:end].decode() for start, end in zip(starts, [*ends, len(data)], strict=True)]
    return [*(one for one in parts[:-1] if one.strip()), parts[-1] if parts[-1].strip() else ""]


# Completed names are executed, so a name that SQL would read as something else is quoted, and a name with characters
# that are not printable is not offered.


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
    """Whether DuckDB reads it as a name without quotes."""
    return name.isascii() and name.isidentifier() and name.lower() not in _words()


@cache
def _words() -> frozenset[str]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category != 'unreserved'")
        return frozenset(word for (word,) in found.fetchall())
