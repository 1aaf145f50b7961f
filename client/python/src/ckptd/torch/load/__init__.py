"""Weights into this rank's model or dict: load_into, load_file, lazy state dicts."""
