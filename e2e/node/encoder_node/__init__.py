"""A Kubernetes cluster to test on: a real single node made of processes on this machine, or kind where Docker answers.

Only the standard library is imported here, so `python3 -m encoder_node build` runs before anything is installed.
"""
