"""An agent's own code while a run is driven: gates, deps, questions and the names of its tools."""
