"""A space of settings, planned in bulk by the very functions of ``plan``.

axes: what is varied. mirror: the engines' modules once more, under built-ins that follow a number through them.
number, program: one plan followed, as operations and the branches it took. evaluate: the same on arrays.
space: rows in blocks. where, front, best: what is kept. sweep: the use-case. write: CSV and Parquet.

numpy lives here and nowhere else in ullage.
"""
