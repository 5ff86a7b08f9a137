"""Entry points are found wherever `importlib.metadata` finds them; without any, it is not even loaded."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from weftline.plugins import entry_points

GROUP = "weftline.of_this_test"
ENTRY = f"[{GROUP}]\nparrot = some_models:Parrot\n"
METADATA = "Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n"


@pytest.mark.parametrize("folder", ["parrot-1.0.dist-info", "parrot.egg-info"])
def test_a_package_in_a_directory(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / folder
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    (info / "PKG-INFO").write_text(METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[console_scripts]\na = b:c\n\n{ENTRY}", encoding="utf-8")
    assert list(entry_points(GROUP)) == []
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert [(point.name, point.value) for point in entry_points(GROUP)] == [("parrot", "some_models:Parrot")]


def test_a_package_in_a_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "parrot.zip", "w") as packed:
        packed.writestr("parrot-1.0.dist-info/METADATA", METADATA)
        packed.writestr("parrot-1.0.dist-info/entry_points.txt", ENTRY)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "parrot.zip")])
    assert [point.name for point in entry_points(GROUP)] == ["parrot"]


def test_a_package_that_another_finder_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Finder:
        @classmethod
        def find_spec(cls, *_: object) -> None:
            return None

        @classmethod
        def find_distributions(cls, context: object) -> list[object]:
            asked.append(context)
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert list(entry_points(GROUP)) == [] and asked


def test_without_any_the_library_is_not_loaded() -> None:
    program = f"import sys; from weftline.plugins import entry_points; print(list(entry_points({GROUP!r})))"
    program += "; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["[]", "False"]
