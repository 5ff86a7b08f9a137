"""Parts for tasks and threads that know nothing about runs: queues that take turns, time limits, a loop in a thread."""
