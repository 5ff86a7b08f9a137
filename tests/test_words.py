"""Names are the words that Python and the web have, and prose is what one would say to a colleague."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from source_tree import SRC, Module, nodes, parse

UNUSUAL = {
    "anew": "again, rebuild",
    "beneath": "below, nested",
    "departure": "disconnect",
    "heard": "received, notified",
    "hear": "receive, listen",
    "hears": "receives, listens",
    "misfit": "problem, invalid",
    "poke": "wake",
    "said": "body, message, answer",
    "say": "send, print, answer",
    "saying": "sending, answering",
    "shown": "display, visible, to_json",
    "spoken": "message",
    "stint": "batch",
    "surely": "with_retry",
    "tell": "notify, report, publish",
    "teller": "projection",
    "tells": "reports",
    "told": "notified, reported",
    "trouble": "error, problem",
    "unheard": "unread",
    "unshown": "hidden",
}
"""Each with what is usual instead."""

UNCLEAR = {
    "as_it_stands": "snapshot",
    "at_home": "on_engine_loop",
    "give_back": "release",
    "given_back": "released",
    "is_elsewhere": "needs_other_process",
    "keeps_time": "clock_running",
    "key_beside": "key_if_not_in_id",
    "require_well": "require_writable",
    "somebody_else": "second_person",
    "stands_still": "is_clock_stopped",
    "taken_drafts": "pop_drafts",
    "taken_facts": "pop_facts",
    "taken_notes": "pop_notes",
}
"""Names of several words, or parts of names, that everybody had to look up. Each with what is usual instead."""

ALLOWED = {"shown_args", "shown_digest"}
"""Fields of the protocol."""

SENTENCE = 6
"""The checks of a conformance suite are called as tests are: a name of so many words is a sentence."""

STILTED = {
    "is no news": "is not an error, does not matter",
    "and only so": "only",
    "who one is": "identity",
    "of its own accord": "automatically",
    " tell of ": " report ",
    " tells of ": " reports ",
    "what it was told": "what it received",
    "carry it on": "continue it",
    "carries it on": "continues it",
    "carried on": "continued",
    "carries on": "continues",
    " anew": " again",
    "leads elsewhere": "diverges, differs",
    "half a character": "an unpaired surrogate",
    "half of a surrogate": "an unpaired surrogate",
    "blacked out": "redacted",
    "exclude each other": "cannot be combined",
    "is there twice": "occurs twice",
    "what there is to": "say what it is",
    "could not be told": "could not be notified, is not clear",
    "not all there": "incomplete",
    "what it came to": "its outcome",
    " had to say": " reported",
    "has to say about": "reports about",
    "is told apart": "is distinguished",
    "hears of": "learns of, is notified of",
    "of our making": "ours",
    "let go of": "released, dropped",
    " in vain": " without effect",
    " hear of ": " are notified of ",
    "nobody's business": "private",
    "comes to its end": "ends",
    "come to its end": "end",
    "has its say": "decides",
    "what is none": "anything else",
    "Not run: ": "Not executed: ",
    "Not started: ": "Not executed: ",
    "Go on without": "Continue without",
    "limit of cost": "cost limit",
    "limit of turns": "turn limit",
    "limit of tool calls": "tool call limit",
    "limit of connections": "connection limit",
    "Give it once more": "Give it again",
    "Your arguments were": "You sent",
    "not be negative": "must be 0 or more",
    "is True or False, not": "must be True or False, not",
    "to live on": "an engine",
    "whatever it still does": "its later output",
    "there was to say": "the original error",
    "hat survives what": "crash safety",
    "never loses": "resumes after a crash",
    "cannot be told from": "cannot be distinguished from",
    "what to do counts": "sends instructions",
    "giving up run": "failing run",
    "is left alone: %s": "is skipped: %s",
    "the store refuses: %s": "the store rejects writes: %s",
    ": no run: %s": "could not start a run",
    "cannot be kept: %s": "cannot be stored",
    "cross the border": "be passed into or out of",
    "come to rest": "settle",
    "only so that": "so that only, just to",
    "order of administration": "admin request",
    "is no reason to": "must not",
    "not for you to": "which you cannot",
    "in place of yours": "instead",
    "an error of its own": "an internal error",
    "going on could": "continuing could",
    "write no answer": "do not write the answer",
    "as many as it may have": "the limit",
    "inside of": "inside",
}
"""Turns that nobody would use, each with what is usual instead."""

ROOT = Path(__file__).resolve().parent.parent
_SUSPECT = re.compile(rf"(?:_|\b)(?:{'|'.join([*UNUSUAL, *UNCLEAR])})(?:_\w|\b(?: *[=:(]| in ))", re.IGNORECASE)
"""Not only in prose: the few files that have one of these are parsed."""


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(SRC.rglob("*.py"))]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_of(module: Module) -> Iterator[tuple[str, int]]:
    """Everything that a module gives a name to, and its own."""
    yield module.name.rpartition(".")[2], 1
    for node in nodes(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case _:
                pass


def unusual(modules: Iterable[Module]) -> list[str]:
    found: list[str] = []
    for module in modules:
        for name, line in names_of(module):
            words = words_of(name)
            if name in ALLOWED or len(words) >= SENTENCE:
                continue
            wrong = [word for word in words if word in UNUSUAL]
            better = [UNUSUAL[word] for word in wrong]
            better += [UNCLEAR[part] for part in UNCLEAR if f"_{part}_" in f"_{'_'.join(words)}_"]
            found += [f"{module.path.relative_to(SRC)}:{line}: {name} ({one}?)" for one in better]
    return sorted(set(found))


def test_names_are_conventional_words(pages: dict[Path, str]) -> None:
    suspects = [path for path, text in pages.items() if path.suffix == ".py" and _SUSPECT.search(text)]
    assert unusual(parse(path, root=SRC) for path in suspects) == []
    assert not [path for path in pages if path.suffix == ".py" and set(words_of(path.stem)) & UNUSUAL.keys()]


@pytest.mark.parametrize(
    "source",
    ["def told(x): ...", "class _Said: ...", "def f(shown_by=1): ...", "self.heard = 1", "def is_at_home(x): ..."],
)
def test_a_file_with_an_unusual_name_is_parsed(source: str) -> None:
    assert _SUSPECT.search(source)


def test_an_unusual_name_is_found() -> None:
    source = (
        "class Told: ...\n\ndef said(shown, *, visible): ...\n\n_heard = shown_args = None\n\ndef is_at_home(): ...\n"
    )
    module = Module("weftline.x", SRC / "x.py", ast.parse(source))
    assert [line.partition(" (")[0] for line in unusual([module])] == [
        "x.py:1: Told",
        "x.py:3: said",
        "x.py:3: shown",
        "x.py:5: _heard",
        "x.py:7: is_at_home",
    ]


def test_prose_has_no_stilted_phrases(pages: dict[Path, str]) -> None:
    found = [f"{page.name}: {one} ({STILTED[one]}?)" for page, text in pages.items() for one in STILTED if one in text]
    assert found == []
