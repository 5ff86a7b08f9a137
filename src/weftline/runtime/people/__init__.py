"""People in runs: awaits, answers, approvals, pauses and messages."""
