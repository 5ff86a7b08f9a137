"""Functions on text and JSON that know nothing about runs: canonical JSON, redaction, bounds on what outsiders send."""
