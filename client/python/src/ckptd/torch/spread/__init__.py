"""Rank 0's weights into the models of all ranks: state dict functions of torch and accelerate, DistModule."""
