"""Outgoing HTTP: one client for models, tools and webhooks, the policy of what it may reach, and an SSE parser.

`client.py` is the client over aiohttp; `transport.py` is how model families see it and `dial.py` how tools and webhooks
do. aiohttp is imported by `session.py` alone, in a thread, at the first request or by `preload`.
"""
