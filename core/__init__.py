"""What the system knows: tasks, episodes, judging, generation, training. No NATS in here; every room works alone."""
