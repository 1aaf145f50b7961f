"""What the ranks of a process group agree on, over its key-value store: rounds, announcements, failures."""
