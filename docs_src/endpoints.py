"""A folder with an endpoint and a controller, served and called."""

import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from weftline.testing import ServerProcess

FILES = {
    "scripts.json": '{"desk": {"turns": [{"text": "Hello."}]}}',
    "agents/helper.md": "---\nmodel: fast\n---\nYou answer customers of Tea & Co.\n",
    "agents/models/fast.py": """
from weftline.threads import define_model

model = define_model(name="fast", provider="test", model="desk")
""",
    "agents/api/notes/[id].put.py": """
from weftline.threads import Request, Response, ThreadState, define_thread_endpoint

@define_thread_endpoint
async def note(request: Request, state: ThreadState, params: dict[str, str]) -> Response:
    await state.set_value(f"note {params['id']}", await request.text())
    return Response.json({"kept": params["id"]}, status=201)
""",
    "agents/api/models.py": """
from weftline.threads import ControllerContext, define_controller

@define_controller
async def models(context: ControllerContext) -> list[str]:
    return sorted(context.registries["models"])
""",
}


def call(method: str, url: str, key: str, body: bytes | None = None) -> Any:
    request = Request(url, data=body, method=method, headers={"Authorization": f"Bearer {key}"})
    with urlopen(request) as response:
        return json.load(response)


with tempfile.TemporaryDirectory() as folder:
    desk = Path(folder, "desk")
    for name, text in FILES.items():
        Path(desk, name).parent.mkdir(parents=True, exist_ok=True)
        Path(desk, name).write_text(text)
    with ServerProcess(Path(folder), arguments=(str(desk),)) as server:
        key = server.create_key("acme")
        url = f"{server.url}/api/v1/workspaces/acme"
        thread = call("POST", f"{url}/threads", key, b'{"agentId": "helper"}')["id"]
        print(call("PUT", f"{url}/threads/{thread}/notes/7", key, b"Call back."))
        print(call("GET", f"{url}/threads/{thread}/values/note%207", key)["value"])
        print(call("GET", f"{url}/endpoints/models", key))
