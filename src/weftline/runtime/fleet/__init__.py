"""All runs in memory: loading, scheduling, timers, parents and children. `fleet.Fleet` puts the parts together."""
