"""Work whose cost cannot be known in advance, because strangers chose its input, done in processes that are killed if
it takes too much.

A thread cannot be stopped, and a library that holds the interpreter's lock stops every thread, so only a process will
do.
"""
