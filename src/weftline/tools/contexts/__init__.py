"""Where commands run and files live: on this machine, in a sandbox on it, in a container, or elsewhere."""
