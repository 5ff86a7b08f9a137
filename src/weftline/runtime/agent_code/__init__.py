"""The code of a run's agent: hooks, policies and notes."""
