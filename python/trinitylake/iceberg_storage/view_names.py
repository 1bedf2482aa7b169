"""Names of catalogs in the text of a view.

The catalog of a transaction ends with the transaction, so a view that names this catalog cannot be read after the
commit. Engines write such names into views, as the default catalog and in the SQL text. The names are removed before a
view is stored, because a name without a catalog refers to the default catalog of the view. If this default is another
catalog than the transaction's, the names are replaced by the name of the catalog that the transaction belongs to.
"""

from __future__ import annotations

import re

from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from trinitylake.errors import InvalidArgument

#: Infix in the name of a transaction's catalog in Spark, after the name of the catalog to which it belongs.
TRANSACTION_CATALOG_INFIX = "_txn_"
#: Infix in the name of the catalog of one version, before its number.
VERSION_CATALOG_INFIX = "_at_"
_TRANSACTION_CATALOG = re.compile(r"\w+" + TRANSACTION_CATALOG_INFIX + "[0-9a-f]{12}")
_STATE_CATALOG = re.compile(rf"(?P<plain>\w+)({TRANSACTION_CATALOG_INFIX}[0-9a-f]{{12}}|{VERSION_CATALOG_INFIX}\d+)")
#: Words before a name that consists of a catalog and a namespace.
_BEFORE_NAMESPACES = {"database", "databases", "exists", "from", "in", "namespace", "schema", "use"}
#: String literals and comments, which contain no names; names in backticks; plain words; any other character.
_TOKEN = re.compile(
    r"""(?P<other>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/|\s+)"""
    r"""|(?P<quoted>`(?:[^`]|``)*`)|(?P<word>\w+)|(?P<sign>.)""",
    re.DOTALL,
)


def named_by_lakehouse(metadata: ViewMetadata, transaction_catalog: str = "") -> ViewMetadata:
    """Remove the names of transactions' catalogs from all versions of a view.

    Args:
        transaction_catalog: the name that the client chose for the catalog of its transaction. Names that this library
            chose are always removed.
    """
    versions = [version_named_by_lakehouse(version, transaction_catalog) for version in metadata.versions]
    return metadata if versions == metadata.versions else metadata.model_copy(update={"versions": versions})


def version_named_by_lakehouse(version: ViewVersion, transaction_catalog: str = "") -> ViewVersion:
    """One version of a view, with table names as in the lakehouse."""
    default = version.default_catalog
    if default is not None and is_transaction_catalog(default, transaction_catalog):
        default = None
    texts = [_outside(one.root.sql, transaction_catalog, default is not None) for one in version.representations]
    representations = [
        one.model_copy(update={"root": one.root.model_copy(update={"sql": text})})
        for one, text in zip(version.representations, texts, strict=True)
    ]
    return version.model_copy(update={"representations": representations, "default_catalog": default})


def named_by_client(metadata: ViewMetadata, catalog: str) -> ViewMetadata:
    """Adapt a view to a client whose catalog shows one transaction or version.

    Names with the plain catalog get the client's catalog. Otherwise the view would show the rows of the latest version.
    """
    if (state := _STATE_CATALOG.fullmatch(catalog)) is None:
        return metadata
    versions = []
    for version in metadata.versions:
        sqls = [one.root for one in version.representations]
        sqls = [one.model_copy(update={"sql": in_catalog(one.sql, state["plain"], catalog)}) for one in sqls]
        named = [old.model_copy(update={"root": new}) for old, new in zip(version.representations, sqls, strict=True)]
        versions.append(version.model_copy(update={"representations": named}))
    return metadata.model_copy(update={"versions": versions})


def in_catalog(statement: str, named: str, meant: str) -> str:
    """Replace the catalog `named` by `meant` in the names of tables and namespaces in a statement.

    A name of three parts is a table. A name of two parts is a namespace after words such as `USE` and `IN`. Elsewhere
    it is a column of a table with the same name as the catalog, and is not changed.
    """
    tokens = tokens_of(statement)
    at = [number for number, (kind, _) in enumerate(tokens) if kind != "other"]
    result = [text for _, text in tokens]
    for place, number in enumerate(at):
        kind, text = tokens[number]
        before = tokens[at[place - 1]][1].lower() if place else ""
        if kind not in ("word", "quoted") or text.strip("`") != named or before == ".":
            continue
        parts, following = 0, place + 1
        while following + 1 < len(at) and tokens[at[following]][1] == ".":
            if tokens[at[following + 1]][0] not in ("word", "quoted"):
                break
            parts, following = parts + 1, following + 2
        if parts >= 2 or (before in _BEFORE_NAMESPACES and (parts == 1 or before == "use")):
            result[number] = meant
    return "".join(result)


def is_transaction_catalog(name: str, transaction_catalog: str = "") -> bool:
    return (bool(name) and name == transaction_catalog) or _TRANSACTION_CATALOG.fullmatch(name) is not None


def _outside(text: str, transaction_catalog: str, names_catalogs: bool) -> str:
    """Remove the catalog of a transaction from the names in a statement.

    With `names_catalogs`, replace it by the catalog that the transaction belongs to. Raises `InvalidArgument` if that
    catalog is not known.
    """
    tokens = tokens_of(text)
    kept: list[str] = []
    number = 0
    while number < len(tokens):
        name = tokens[number][1].strip('`"')
        is_qualifier = number + 1 < len(tokens) and tokens[number + 1][1] == "."
        is_first = not kept or kept[-1] != "."
        if is_qualifier and is_first and is_transaction_catalog(name, transaction_catalog):
            plain = name.rpartition(TRANSACTION_CATALOG_INFIX)[0]
            if names_catalogs and not plain:
                raise InvalidArgument(
                    f"the view names {name}, the catalog of a transaction, and another catalog is its default: make "
                    f"{name} the current catalog, and name the tables without a catalog"
                )
            kept += [plain, "."] if names_catalogs else []
            number += 2
            continue
        kept.append(tokens[number][1])
        number += 1
    return "".join(kept)


def tokens_of(statement: str) -> list[tuple[str, str]]:
    """Kind and text of each token. The joined texts are the statement. Kinds: other, quoted, word, sign."""
    return [(match.lastgroup or "", match.group()) for match in _TOKEN.finditer(statement)]
