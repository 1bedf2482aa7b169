"""Certificate of an erasure: the deleted files and the result of the verification, without personal data.

The filter is stored as a keyed hash, with the key in a separate file. A plain hash would reveal the filter: a reader
could hash all e-mail addresses or phone numbers and compare the hashes. The same key authenticates the certificate.
File paths omit partition values.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyiceberg.expressions import BooleanExpression

from trinitylake import _core
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.lakehouse.erasure_survey import search_files, survey
from trinitylake.lakehouse.file_search import all_files

FORMAT = "trinitylake-erasure-1"
_FILTER, _AUTHENTICATION = "filter_hmac_sha256", "hmac_sha256"


def new_certificate(table: str, filter: BooleanExpression, fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Create a certificate with `fields`, and its key in hexadecimal."""
    key = secrets.token_hex(32)
    certificate = {"format": FORMAT, "table": table, _FILTER: _hmac(key, f"{table}\0{filter}"), **fields}
    return {**certificate, _AUTHENTICATION: _authentication(certificate, key)}, key


def write_certificate(certificate: Mapping[str, Any], key: str, path: str | os.PathLike[str]) -> None:
    """Write a certificate, and its key to `<path>.key`, which only the user can read. Neither file may exist."""
    with Path(path).open("x", encoding="utf-8") as file:
        file.write(json.dumps(certificate, indent=2, ensure_ascii=False) + "\n")
    descriptor = os.open(f"{os.fspath(path)}.key", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{key}\n")


def without_values(path: str) -> str:
    """A path with "*" instead of partition values; the random id in the file name still identifies the file."""
    return "/".join("*" if "=" in segment else segment for segment in path.split("/"))


def check_certificate(
    core: _core.Lakehouse,
    path: str | os.PathLike[str],
    filter: str | BooleanExpression | None,
    key_path: str | os.PathLike[str] | None,
) -> dict[str, str]:
    """Check that the files and versions that a certificate lists as deleted do not exist.

    Args:
        core: the lakehouse.
        path: path of the certificate.
        filter: filter of the erasure; if given, all files are also searched for matching rows.
        key_path: path of the key; if given, also check that the certificate is unchanged and has this filter.

    Returns the problems, by path of the file. Raises `InvalidArgument` for a file that is not a certificate and, if the
    key is given, for a changed certificate or another filter.
    """
    text = _text_of(path)
    try:
        certificate = json.loads(text)
        if certificate["format"] != FORMAT:
            raise ValueError(f"its format is {certificate['format']}")
        table, ids, deleted = certificate["table"], certificate["table_ids"], set(certificate["deleted_files"])
        expired = set(map(_core.root_path, certificate["expired_versions"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{os.fspath(path)} is not a certificate of an erasure: {error}") from error
    expression = None if filter is None else parse_filter(filter)
    if key_path is not None:
        _check_key(certificate, _text_of(key_path).strip(), expression)
    storage = core.storage
    problems = {
        file.path: "the certificate lists it as deleted"
        for file in all_files(storage)
        if without_values(file.path) in deleted or file.path in expired
    }
    if expression is not None:
        found = survey(core, LakehouseFileIO(storage), table, expression, ids)
        problems |= {_core.root_path(number): "this version holds matching rows" for number in found.versions}
        for one in search_files(storage, expression, found):
            if problem := one.described():
                problems[one.file.path] = problem
    return problems


def _text_of(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeError:
        raise InvalidArgument(f"{os.fspath(path)!r} is not a text file, or not a valid file name") from None
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgument(f"the file {path!r} cannot be read: {error}") from error


def _check_key(certificate: dict[str, Any], key: str, filter: BooleanExpression | None) -> None:
    rest = {name: value for name, value in certificate.items() if name != _AUTHENTICATION}
    if not hmac.compare_digest(_authentication(rest, key), certificate.get(_AUTHENTICATION, "")):
        raise InvalidArgument("the key does not belong to the certificate, or the certificate was changed")
    if filter is not None and _hmac(key, f"{certificate['table']}\0{filter}") != certificate[_FILTER]:
        raise InvalidArgument("the certificate belongs to another filter: pass the filter of that erasure")


def _authentication(certificate: Mapping[str, Any], key: str) -> str:
    return _hmac(key, json.dumps(certificate, sort_keys=True, ensure_ascii=True))


def _hmac(key: str, text: str) -> str:
    try:
        return hmac.new(bytes.fromhex(key), text.encode(), hashlib.sha256).hexdigest()
    except ValueError:
        raise InvalidArgument("the key file does not contain one line of hexadecimal digits") from None
