"""The log of a run as events for Python."""
