"""The authors' functions and mmgrpo's on the same random inputs: ``python -m benchmarks.agreement FOLDER``.

This repository has none of the authors' code: their functions are read from clones in the folder, each
``OWNER+NAME/repo``, at the checked-out commit.
"""
