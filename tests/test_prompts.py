"""The texts that models read are those in `prompts.txt`, and come from `weftline.prompts` only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import prompt_texts
from weftline import prompts
from weftline.kernel.entries import FinalReason
from weftline.tools.contexts.base import FileErrorKind

_SAYS = ("ToolFailed", "ToolOutput.of")


def _sentences_of_their_own(paths: list[Path]) -> list[str]:
    """Where these files tell a model something in words that do not come from a module of prompts.

    That is what they give to `ToolFailed` and `ToolOutput.of`, directly or by a variable, and, in files that use these,
    the messages of their private exceptions, which end up there.
    """
    found: list[str] = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        if not any(name in source for name in _SAYS):
            continue
        tree = ast.parse(source)
        says = {*_SAYS, *_private_errors(tree)}
        for scope, call in _calls(tree):
            if ast.unparse(call.func) in says and call.args:
                words = [word for part in _reached(call.args[0], scope) for word in _words_in(part)]
                found += [f"{path.name}:{call.lineno}: {word}" for word in dict.fromkeys(words)]
    return found


def _private_errors(tree: ast.Module) -> set[str]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] == "_"]
    return {
        one.name for one in classes if any(ast.unparse(base).endswith(("Error", "Exception")) for base in one.bases)
    }


def _calls(tree: ast.Module) -> list[tuple[ast.AST, ast.Call]]:
    """Each call with the innermost function that contains it."""
    calls: dict[ast.Call, ast.AST] = {}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            calls |= {node: scope for node in ast.walk(scope) if isinstance(node, ast.Call)}
    return [(scope, call) for call, scope in calls.items()]


def _reached(said: ast.expr, scope: ast.AST) -> list[ast.expr]:
    """An expression, and what the variables in it may hold."""
    names = {part.id for part in ast.walk(said) if isinstance(part, ast.Name)}
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    return [said, *[one.value for one in assigned if any(ast.unparse(target) in names for target in one.targets)]]


def _words_in(said: ast.expr) -> list[str]:
    texts = [part.value for part in ast.walk(said) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return [text for text in texts if len(text.split()) > 1]


def test_prompts_are_those_on_file() -> None:
    assert prompt_texts.PATH.read_text(encoding="utf-8") == prompt_texts.rendered(), "run `make prompts`, read the diff"


def test_every_reason_and_file_error_has_a_text() -> None:
    assert set(prompts.turns.FINAL_TURN) == set(get_args(FinalReason))
    assert set(prompts.files.FILE_ERRORS) == set(get_args(FileErrorKind))


def _sentences(folder: str, spoken: Callable[[ast.AST], Sequence[ast.expr]]) -> list[str]:
    """Literals of several words in the expressions that `spoken` finds."""
    found: list[str] = []
    for path in sorted((Path(prompts.__file__).parents[1] / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said = [part for root in spoken(node) for part in ast.walk(root) if isinstance(part, ast.Constant)]
            words = [
                part.value for part in said if isinstance(part.value, str) and part.value.strip(" .[]():").count(" ")
            ]
            found += [f"{path.name}: {word}" for word in words]
    return found


def test_no_module_puts_sentence_of_its_own_before_model() -> None:
    root = Path(prompts.__file__).parents[1]
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in ("prompts", "testing")]
    assert _sentences_of_their_own([path for folder in sorted(folders) for path in sorted(folder.rglob("*.py"))]) == []


def test_sentence_that_model_reads_by_detour_is_found(tmp_path: Path) -> None:
    module = tmp_path / "peer.py"
    module.write_text(
        "class _Rejected(Exception): ...\n"
        "def send(status):\n"
        "    why = 'without any headers' if status else prompts.remote.NO_REASON\n"
        "    raise _Rejected(f'{status} {why}')\n"
        "def ask():\n"
        "    try: send(1)\n"
        "    except _Rejected as error: return ToolOutput.of(str(error))\n"
        "    except ValueError: raise ValueError('nobody reads this')\n"
        "    return ToolOutput.of(prompts.remote.MCP_TIMED_OUT)\n"
    )
    assert _sentences_of_their_own([module]) == ["peer.py:4: without any headers"]


def test_tools_write_no_sentences_of_their_own_to_models() -> None:
    """`ToolFailed("…")` and the like, with words in place: those belong in `prompts/`."""
    speakers = ("ToolFailed", "ToolOutput.of", "InvalidArguments", "Issue")

    def spoken(node: ast.AST) -> Sequence[ast.expr]:
        if not isinstance(node, ast.Call):
            return ()
        described = [one.value for one in node.keywords if one.arg in ("description", "explanation")]
        return [*node.args, *described] if ast.unparse(node.func) in speakers else described

    assert _sentences("tools", spoken) == []


def test_providers_write_no_sentences_of_their_own_to_models() -> None:
    """`text_block("…")`, `{"text": "…"}` and `{"description": "…"}` with words in place."""

    def spoken(node: ast.AST) -> Sequence[ast.expr]:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("text_block", "Text"):
            return node.args
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            return [value for key, value in zip(keys, node.values, strict=True) if key in ("text", "description")]
        return ()

    assert _sentences("providers", spoken) == []
