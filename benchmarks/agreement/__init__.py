"""The authors' functions and mmgrpo's on the same random inputs: ``python -m benchmarks.agreement FOLDER``.

Nothing of the authors' code is kept here: their functions are taken out of clones in the folder, each
``OWNER+NAME/repo``, at the checked-out commit.
"""
