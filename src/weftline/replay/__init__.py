"""What can be done with runs that have ended: take them elsewhere, run them again, go on from one of their turns."""
