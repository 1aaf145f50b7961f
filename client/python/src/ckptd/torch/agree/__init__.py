"""Agreement of the ranks of a process group over its key-value store: rounds, announcements, failures."""
