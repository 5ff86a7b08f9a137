"""Outgoing HTTP: one client for models, tools and webhooks, the policy of what it may reach, and an SSE parser.

`client.py` is the client over aiohttp; model families use it through `transport.py`, tools and webhooks through
`dial.py`. aiohttp is imported by `session.py` alone, in a thread, at the first request or by `preload`.
"""
