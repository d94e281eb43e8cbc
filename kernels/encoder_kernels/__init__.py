"""Kernels shared by the plugins: each folder is one operation.

``<op>/__init__.py`` is the public function, ``kernel.py`` its Triton kernel, ``reference.py`` the same in plain PyTorch (what CPUs run, and
what the kernel is tested against), ``bench.py`` its table. Nothing here imports Triton before a kernel is launched, nothing is registered
anywhere, and no function waits for the device.
"""
