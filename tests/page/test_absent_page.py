"""A build of the package without the web page."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from rest.client import TOKEN, running
from trinitylake import page as web_page
from trinitylake.cli.app import app


def test_a_build_without_the_page_says_so(lake: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_page, "_BUILT", "not_built")
    with running(lake, token=TOKEN) as server:
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{server.port}/")
        assert refused.value.code == 404
        assert b"has no web page" in refused.value.read()
    result = CliRunner().invoke(app, ["page", str(tmp_path / "site"), "--lakehouse", "../lake"])
    assert result.exit_code == 2
    assert "has no web page" in result.output
    assert not (tmp_path / "site").exists()
