"""The process around a server or a command, free of HTTP: its log, signals, memory, and a stalled event loop."""
