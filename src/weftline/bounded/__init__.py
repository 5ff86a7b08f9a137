"""Work whose cost cannot be known beforehand, because strangers chose its input, done in processes that are killed
when it takes too much.

A thread cannot be stopped, and a library that holds the interpreter's lock stops every thread: so a process it is.
"""
