"""Training states: parameters, optimizers and the values beside them. For users: ckptd.torch."""
