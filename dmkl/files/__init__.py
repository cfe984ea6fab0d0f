"""Files of dmkl's own: written whole or not at all, checked when they are read, and by one process at a time."""
