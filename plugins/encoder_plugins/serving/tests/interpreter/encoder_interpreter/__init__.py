"""A Triton backend that compiles nothing: it only makes Triton, and vLLM, believe that there is a device.

vLLM's Model Runner V2 is written in Triton, and refuses a machine without a backend for it. With TRITON_INTERPRET=1 no
backend ever compiles. This folder is put on PYTHONPATH for one test's process, never installed; without the
variable the backend is not active. Triton looks for one concrete class in each of `compiler` and `driver`.
"""
