"""Skills: directories of instructions, scripts and files that a model takes up when a task needs them.

The format is that of Agent Skills. `format` reads a SKILL.md, `discovery` finds skills and decides which one of a name
counts, `catalog` is what the model is told about them, `activation` what is in force in a run, `allowed` which tools
that leaves, and `toolset` brings it together as `skills(…)`.
"""
