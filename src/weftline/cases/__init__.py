"""Use cases: one function each, and one file per resource with its rows, its checks and its JSON."""
