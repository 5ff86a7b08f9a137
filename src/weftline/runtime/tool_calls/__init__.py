"""Tool calls: the tools of a run, how calls are prepared and executed, and results from clients and child runs."""
