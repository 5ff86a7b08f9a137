"""Runs that the server begins by itself: by a cron expression in a time zone, and once at a time."""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from weftline.cli.reach import reach
from weftline.client import Client
from weftline.testing import ServerProcess

SCRIPTS = {"report": {"turns": [{"text": "All is well."}]}}
AGENT = '{"name": "Reporter", "spec": {"modelId": "scripted:report"}}'


def again_and_again(client: Client) -> None:
    report = client.schedules.create(
        "Morning report", "Write the report.", cron="0 9 * * 1-5", timezone="Europe/Berlin", agent_id="reporter"
    )
    print(report.id, report.next_at)
    run = client.wait_run(client.schedules.run(report.id))
    print(run.status, run.final_text)
    client.schedules.pause(report.id)


def once(client: Client) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=2)
    reminder = client.schedules.create("Reminder", "Remind me.", at=soon, agent_id="reporter")
    while (reminder := client.schedules.get(reminder.id)).last_run_id is None:
        time.sleep(0.05)
    (run,) = client.list_runs(metadata={"weftline.schedule": reminder.id}).items
    print(run.id == reminder.last_run_id, reminder.next_at)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        with reach(server.db, workspace="acme", writes=True) as store:
            store.post("/agents", AGENT.encode())
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            again_and_again(client)
            once(client)


if __name__ == "__main__":
    main()
