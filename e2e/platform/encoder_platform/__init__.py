"""What the cluster suite, the demo and the benchmarks stand on: a cluster with our images, chart and hub installed, and a client pod.

Talks to the API server as a user does, with the official client, helm and kubectl; knows nothing of how the operator works inside.
"""
