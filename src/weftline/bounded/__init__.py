"""Runs work whose cost cannot be known in advance, because outsiders chose its input, in processes that are killed if
it takes too much.

A thread cannot be stopped, and a library that holds the GIL blocks every thread, so it has to be a process.
"""
