"""Tests of the operator. A package, because pytest would otherwise name these modules after the shelf, ``operator``, and so hide the standard library's."""
