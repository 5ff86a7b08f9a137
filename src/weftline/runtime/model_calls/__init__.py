"""Model turns: the request, its stream, its cost, and summaries of long conversations."""
