"""Taking turns, time limits, threads, and processes that can be killed; nothing here knows what a run is."""
