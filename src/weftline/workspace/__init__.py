"""Use cases of the things that a workspace stores: plain functions, free of HTTP and SQL.

Routes, commands, hosted MCP and A2A all call these. Each takes a `Workspaces` first (see `context`), then the
workspace, and works on our own types; callers handle the JSON of requests and responses.
"""
