"""What a run leaves behind, as files: facts, steps, episodes, metrics; and how to read them. No bus, no torch."""
