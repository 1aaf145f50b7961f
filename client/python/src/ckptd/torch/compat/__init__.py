"""Private names of torch, accelerate and transformers, and what depends on their versions."""
