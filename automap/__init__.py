"""automap: the mapping between the parameters of a PyTorch network and its MindSpore port, inferred and proven."""

__version__ = "0.1.0"
