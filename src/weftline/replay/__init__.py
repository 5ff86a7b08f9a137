"""Work on runs that have ended: export and import them, replay them, or fork them at one of their turns."""
