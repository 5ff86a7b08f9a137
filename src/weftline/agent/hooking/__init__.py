"""Calling hooks: which points there are is in `agent/hooks.py` and `agent/hooks_outside.py`."""
