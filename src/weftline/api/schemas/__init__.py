"""The JSON of stored things, for routes and commands: what a body may contain, and how records are returned."""
