"""Files of dmkl: written completely or not at all, by one process at a time, and checked when they are read."""
