"""Skills: directories of instructions, scripts and files that a model activates when a task needs them.

The format is that of Agent Skills. `format` reads a SKILL.md, `discovery` finds skills and picks one of each name,
`catalog` is what the model reads about them, `activation` tracks the active skills of a run, `allowed` the tools that
they allow, and `toolset` combines it all as `skills(…)`.
"""
