"""The activations of feed-forward blocks that are served, by transformers' names. Standard library only."""

# functions that vLLM's layer of the same name computes as transformers does; a test compares them
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")
