"""From an agent to the plan of a run, and back to the agent when the run is opened."""
