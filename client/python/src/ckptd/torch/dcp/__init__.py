"""A StorageReader of torch.distributed.checkpoint over the daemons. It builds on load/."""
