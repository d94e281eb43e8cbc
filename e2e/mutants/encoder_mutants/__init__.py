"""Mutation tests: change one expression of a module at a time, and see whether a test fails.

`make mutants` runs them; `modules.toml` says which modules and which tests. The mutations are those of cosmic-ray and some of our own.
mutmut 3 was the other candidate: it mutates the bodies of functions only, and so no default and no limit.
"""
