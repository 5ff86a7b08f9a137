"""A workspace's agents for A2A callers, of protocol versions 0.3 and 1.0, over JSON-RPC.

`rpc` reads calls and writes replies. A `dialect` (`v0_3`, `v1_0`) is how one version spells requests and results;
everything in between uses the types of `tasks`: a task is a run, and what callers see of it is a projection of its
entries. `sending` delivers a message to its task.
"""
