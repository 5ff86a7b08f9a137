"""Weftline's use cases in JSON, free of HTTP: runs, stored things and administration.

Routes, commands, the control socket, MCP and A2A all call these. `workspace/` below has what needs neither the wire
nor an engine.
"""
