"""What can be done with the things that a workspace stores: plain functions, free of HTTP and of SQL.

Routes, commands, hosted MCP and A2A all call these. Each takes a `Workspaces` first (see `context`), then the
workspace, and works on types of ours; the JSON of requests and responses is the caller's business.
"""
