"""Tables of features as they come, in memory or in files, seen alike."""
