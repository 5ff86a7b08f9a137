"""The JSON of stored things, for routes and commands alike: what a body may say, and how a record is shown."""
