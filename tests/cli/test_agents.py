"""`weftline agents`: stored, replaced, and warned of while the server that has the store could not run them."""

from __future__ import annotations

import json
from pathlib import Path

from commands import Done, weftline
from weftline.testing import ServerProcess


def definition(folder: Path, **spec: object) -> str:
    file = folder / "agent.json"
    file.write_text(json.dumps({"name": "Writer", "slug": "writer", "spec": spec}))
    return str(file)


def agents(server: ServerProcess, *arguments: str) -> Done:
    return weftline("agents", *arguments, "--workspace", "acme", "--db", str(server.db))


def test_an_agent_is_replaced_by_its_slug(server: ServerProcess, tmp_path: Path) -> None:
    made = agents(server, "create", "--file", definition(tmp_path, modelId="scripted:hello"))
    assert (made.code, made.err) == (0, "")
    try:
        changed = agents(server, "update", "writer", "--file", definition(tmp_path, modelId="scripted:system"))
        assert changed == Done(0, made.out, "")
        shown = json.loads(agents(server, "show", "writer", "--json").out)
        assert shown["spec"] == {"modelId": "scripted:system"} and shown["id"] == made.out.strip()
        fields = dict(
            line.split(maxsplit=1) for line in agents(server, "show", "writer").out.splitlines() if " " in line
        )
        assert (json.loads(fields["spec"]), fields["system"]) == ({"modelId": "scripted:system"}, "false")
        unknown = agents(server, "update", "nobody", "--file", definition(tmp_path))
        assert unknown.code == 1 and "'nobody'" in unknown.err
        for command in ("show", "delete"):
            mistyped = agents(server, command, "writr")
            assert mistyped.code == 1 and "Did you mean 'writer'?" in mistyped.err
    finally:
        agents(server, "delete", "writer")


def test_agent_with_a_missing_model_or_tool_is_stored_warned(server: ServerProcess, tmp_path: Path) -> None:
    made = agents(server, "create", "--file", definition(tmp_path, modelId="scripted:helo"))
    try:
        assert made.code == 0 and made.out.startswith("agent_")
        assert "no model 'scripted:helo'" in made.err and "Did you mean 'scripted:hello'" in made.err
        file = definition(tmp_path, tools=[{"kind": "server", "name": "calculater"}])
        changed = agents(server, "update", "writer", "--file", file, "--json")
        (warning,) = json.loads(changed.out)["warnings"]
        assert warning["code"] == "invalid_plugin" and "Did you mean 'calculator'" in warning["message"]
    finally:
        agents(server, "delete", "writer")
