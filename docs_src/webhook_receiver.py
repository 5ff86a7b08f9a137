"""A receiver of webhooks, which checks that a request comes from the server before it believes it."""

from __future__ import annotations

import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from weftline.cli.reach import reach
from weftline.client import Client, InvalidSignature, verify_webhook
from weftline.testing import ServerProcess

SCRIPTS = {"hello": {"turns": [{"text": "Hello."}]}}
CONFIG = "[server]\nallow_private_egress = true\n"  # the receiver is on this machine

secret = ""


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            event = verify_webhook(body, self.headers["Weftline-Signature"], secret)
        except InvalidSignature as error:
            print("refused:", error)
            self.send_error(401)
            return
        print(event["type"], event["run"]["id"], event["run"]["finalText"])
        self.send_response(204)
        self.end_headers()


def main() -> None:
    global secret
    with (
        HTTPServer(("127.0.0.1", 0), Receiver) as receiver,
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder), scripts=SCRIPTS, config=CONFIG) as server,
    ):
        key = server.create_key("acme")
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        with reach(server.db, workspace="acme", writes=True) as store:
            secret = store.post("/webhooks", {"url": url})["secret"]
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            client.run("Hi.", model_id="scripted:hello")
        receiver.handle_request()


if __name__ == "__main__":
    main()
