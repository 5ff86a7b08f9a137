"""Builds a package that `weftline pack` wrote, for `pip install` and `python -m build`: a PEP 517 backend.

It is copied into the package, so that building it needs nothing but Python.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    project = _project()
    stem = _stem(project)
    name = f"{stem}-py3-none-any.whl"
    files = {path.as_posix(): path.read_bytes() for path in _code()}
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = _metadata(project)
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: weftline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = _entry_points(project)
    record = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    project = _project()
    stem = _stem(project)
    name = f"{stem}.tar.gz"
    with tarfile.open(Path(sdist_directory, name), "w:gz") as archive:
        info = tarfile.TarInfo(f"{stem}/PKG-INFO")
        metadata = _metadata(project)
        info.size = len(metadata)
        archive.addfile(info, io.BytesIO(metadata))
        for path in [Path("pyproject.toml"), Path(__file__).relative_to(Path.cwd()), *_code()]:
            archive.add(path, f"{stem}/{path.as_posix()}")
    return name


def _project() -> dict[str, Any]:
    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]


def _stem(project: dict[str, Any]) -> str:
    return f"{re.sub(r'[-_.]+', '_', project['name'])}-{project['version']}"


def _code() -> Iterator[Path]:
    """Yields the files of the folders beside this file."""
    for path in sorted(Path().rglob("*")):
        parts = path.parts
        hidden = any(part.startswith(".") or part in ("__pycache__", "build", "dist") for part in parts)
        if path.is_file() and len(parts) > 1 and not hidden and not parts[0].endswith(".egg-info"):
            yield path


def _metadata(project: dict[str, Any]) -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    if project.get("description"):
        lines.append(f"Summary: {' '.join(project['description'].split())}")
    if project.get("requires-python"):
        lines.append(f"Requires-Python: {project['requires-python']}")
    lines += [f"Requires-Dist: {one}" for one in project.get("dependencies", ())]
    return "\n".join([*lines, ""]).encode()


def _entry_points(project: dict[str, Any]) -> bytes:
    lines: list[str] = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *[f"{name} = {value}" for name, value in points.items()], ""]
    return "\n".join(lines).encode()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
