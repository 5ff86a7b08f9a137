"""`Engine`, where agents' runs live, and its methods by what they are about."""
