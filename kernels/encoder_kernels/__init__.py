"""Triton kernels shared by the plugins, each with its PyTorch reference. None so far: the first plugin runs on vLLM's own layers."""
