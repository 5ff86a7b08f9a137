"""Secrets at rest."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from weftline.errors import StoreError
from weftline.store.sealing import KEY_FILE, KEY_VARIABLE, Vault

HEADERS = {"facts": {"Authorization": "Bearer tok"}}
KEY = base64.b64encode(bytes(range(32))).decode()


def test_sealed_value_opens_only_for_its_workspace(tmp_path: Path) -> None:
    vault = Vault(tmp_path, environ={})
    sealed = vault.seal_headers(HEADERS, workspace=1)
    assert sealed is not None and b"tok" not in sealed
    assert sealed != vault.seal_headers(HEADERS, workspace=1)
    assert Vault(tmp_path, environ={}).open_headers(sealed, workspace=1) == HEADERS
    for wrong in (sealed[:-1] + bytes([sealed[-1] ^ 1]), sealed[:5], b"\x02" + sealed[1:]):
        with pytest.raises(StoreError):
            vault.open_headers(wrong, workspace=1)
    with pytest.raises(StoreError):
        vault.open_headers(sealed, workspace=2)


def test_the_key_file_is_made_at_first_need_and_private(tmp_path: Path) -> None:
    vault = Vault(tmp_path, environ={})
    assert vault.seal_headers({}, workspace=1) is None and vault.open_headers(None, workspace=1) == {}
    assert list(tmp_path.iterdir()) == []
    vault.seal_values({"A": "b"}, tool="tool_1")
    (file,) = tmp_path.iterdir()
    assert file.name == KEY_FILE and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_environments_key_comes_first_and_leaves_no_file(tmp_path: Path) -> None:
    sealed = Vault(tmp_path, environ={KEY_VARIABLE: KEY}).seal_values({"A": "b"}, tool="tool_1")
    assert list(tmp_path.iterdir()) == []
    assert Vault(tmp_path, environ={KEY_VARIABLE: KEY}).open_values(sealed, tool="tool_1") == {"A": "b"}
    with pytest.raises(StoreError):
        Vault(tmp_path, environ={}).open_values(sealed, tool="tool_1")
    other = base64.b64encode(bytes(32)).decode()
    with pytest.raises(StoreError):
        Vault(tmp_path, environ={KEY_VARIABLE: other}).open_values(sealed, tool="tool_1")


@pytest.mark.parametrize("key", ["short", "!!!", base64.b64encode(b"x" * 31).decode()])
def test_a_wrong_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError) as caught:
        Vault(tmp_path, environ={KEY_VARIABLE: key}).seal(b"x", place="here")
    assert caught.value.code == "bad_config" and key not in caught.value.message
    (tmp_path / KEY_FILE).write_text("nonsense")
    with pytest.raises(StoreError):
        Vault(tmp_path, environ={}).seal(b"x", place="here")
