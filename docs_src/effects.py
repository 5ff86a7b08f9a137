"""A folder with an effect, which a client schedules."""

import json
import tempfile
import time
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
    "agents/effects/remind.py": '''
from weftline.threads import ThreadState, define_effect

@define_effect
async def remind(state: ThreadState, order: str) -> None:
    """Notes that an order was not settled."""
    if not await state.get_value("settled"):
        await state.set_value("reminder", f"Is order {order} settled?")
''',
}


def call(method: str, url: str, key: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=data, method=method, headers=headers)) as response:
        return json.load(response)


with tempfile.TemporaryDirectory() as folder:
    desk = Path(folder, "desk")
    for name, text in FILES.items():
        Path(desk, name).parent.mkdir(parents=True, exist_ok=True)
        Path(desk, name).write_text(text)
    with ServerProcess(Path(folder), arguments=(str(desk),)) as server:
        key = server.create_key("acme")
        url = f"{server.url}/api/v1/workspaces/acme/threads"
        thread = f"{url}/{call('POST', url, key, {'agentId': 'helper'})['id']}"
        soon = call("POST", f"{thread}/effects", key, {"name": "remind", "args": {"order": "17"}, "delayMs": 100})
        late = call(
            "POST", f"{thread}/effects", key, {"name": "remind", "args": {"order": "18"}, "delayMs": 86_400_000}
        )
        print(call("DELETE", f"{thread}/effects/{late['id']}", key))
        while (effect := call("GET", f"{thread}/effects/{soon['id']}", key))["status"] != "executed":
            time.sleep(0.05)
        print(effect["name"], effect["args"], call("GET", f"{thread}/values/reminder", key)["value"])
