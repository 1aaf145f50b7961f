"""The parts of the patch that depend on the version of transformers, and its private names."""
