"""Weftline's use cases, free of HTTP: runs, stored things and administration, most of them in JSON.

Routes, commands, the control socket, MCP, A2A and the library call these. `workspace/` below has what needs neither the
wire nor an engine.
"""
