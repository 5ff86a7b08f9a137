"""An agent whose model is behind an OpenAI-compatible endpoint of your own: vLLM, Ollama, a gateway."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from weftline import Agent, Engine, Limits
from weftline.providers.catalog import Catalog
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.pricing import Price, PriceOverride, Prices


def by_object(url: str) -> None:
    lab = OpenAIChat(profile="compatible", name="lab", base_url=url, api_key="sk-lab", models=["llama"])
    print(Agent(lab, instructions="Be brief.").run_sync("Hello?").text)


def by_name(url: str) -> None:
    """With a price, so that limits on costs hold."""
    models = Catalog(prices=Prices([PriceOverride("lab", "llama", Price(0.2, 0.4))]))
    models.add(OpenAIChat(profile="compatible", name="lab", base_url=url, models=["llama"]), any_model=True)
    agent = Agent("lab:llama", limits=Limits(max_cost_usd=0.10))
    with Engine(models=models) as engine:
        print(agent.run_sync("Hello?", engine=engine).cost_usd)


class Endpoint(BaseHTTPRequestHandler):
    """What stands in for yours here."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        delta = {"choices": [{"index": 0, "delta": {"content": "Hello."}}]}
        usage = {"prompt_tokens": 1000, "completion_tokens": 500}
        end = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}], "usage": usage}
        for event in (json.dumps(delta), json.dumps(end), "[DONE]"):
            self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        by_object(url)
        by_name(url)
        server.shutdown()
