"""Imports the files of a folder under private names, a package per generation.

A folder's root is never on `sys.path`: its `agents` would hide an installed package of that name. Each generation has a
package of its own, so that two folders, or two generations of one, do not see each other's modules. Relative imports
find what is below the root. Nothing is cached on disk, as a file may change twice within the resolution of its time.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

PREFIX = "_weftline_"
CHECKING = "WEFTLINE_CHECK"
"""Set to 1 while `weftline check` imports files, for code that has side effects on import."""

_generations = itertools.count(1)


class Generation:
    """The modules of one folder, imported once. `forget` removes them when nothing uses them any more."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.number = next(_generations)
        digest = hashlib.blake2b(str(self.root).encode(errors="surrogateescape"), digest_size=4).hexdigest()
        self.package = f"{PREFIX}{_identifier(self.root.name) or 'project'}_{digest}_{self.number}"
        self._named: dict[str, Path] = {}
        _Finder.installed().generations[self.package] = self

    def module_of(self, file: Path) -> str:
        """Returns the name under which a file is imported.

        Brackets, dots and dashes, which names of modules cannot have, become `_` before a digest of the name, so that
        `find-it.py` is not taken for `find_it.py`.
        """
        parts = file.absolute().relative_to(self.root).with_suffix("").parts
        name = ".".join([self.package, *[one if one.isidentifier() else _distinct(one) for one in parts]])
        for depth in range(1, len(parts)):
            folder = ".".join(name.split(".")[: depth + 1])
            self._named.setdefault(folder, self.root.joinpath(*parts[:depth]))
        self._named[name] = file
        return name

    def load(self, file: Path) -> ModuleType:
        """Imports a file, unless another one has already done so. Raises whatever the file raises."""
        return importlib.import_module(self.module_of(file))

    def path_of(self, name: str) -> Path | None:
        """Returns the file or folder that a module is."""
        if name == self.package:
            return self.root
        if name in self._named:
            return self._named[name]
        below = self.root.joinpath(*name.removeprefix(f"{self.package}.").split("."))
        file = below.with_name(f"{below.name}.py")
        return file if file.is_file() else below if below.is_dir() else None

    def forget(self) -> None:
        _Finder.installed().generations.pop(self.package, None)
        for name in [one for one in sys.modules if one == self.package or one.startswith(f"{self.package}.")]:
            del sys.modules[name]


class _Finder:
    """Finds the modules of all generations."""

    def __init__(self) -> None:
        self.generations: dict[str, Generation] = {}

    @classmethod
    def installed(cls) -> _Finder:
        for finder in sys.meta_path:
            if isinstance(finder, cls):
                return finder
        finder = cls()
        sys.meta_path.append(finder)
        return finder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        generation = self.generations.get(fullname.partition(".")[0])
        found = None if generation is None else generation.path_of(fullname)
        if found is None:
            return None
        if not found.is_dir():
            return spec_from_file_location(fullname, found, loader=_Uncached(fullname, str(found)))
        init = found / "__init__.py"
        if init.is_file() and fullname != (generation.package if generation else ""):
            places = [str(found)]
            return spec_from_file_location(
                fullname, init, loader=_Uncached(fullname, str(init)), submodule_search_locations=places
            )
        spec = ModuleSpec(fullname, None, is_package=True)
        # A folder that no other finder would search: all below is found here.
        spec.submodule_search_locations = []
        return spec


class _Uncached(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        file = self.get_filename(fullname)
        return self.source_to_code(self.get_data(file), file)


@contextmanager
def checking(active: bool) -> Generator[None]:
    """Sets `WEFTLINE_CHECK` to 1 while files are imported only to be checked."""
    before = os.environ.get(CHECKING)
    if active:
        os.environ[CHECKING] = "1"
    try:
        yield
    finally:
        if active:
            os.environ.pop(CHECKING)
            if before is not None:
                os.environ[CHECKING] = before


def _distinct(text: str) -> str:
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=4).hexdigest()
    return f"_{_identifier(text)}_{digest}"


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text)
