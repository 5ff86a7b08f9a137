"""Agents as a library: the same kernel, driver and log as the server's, in a script."""
