"""``ullage mcp``: the use-cases as tools of a Model Context Protocol server. It holds no arithmetic.

``server`` speaks the protocol and never computes; ``workers`` are processes of their own that do (``worker``,
``answers``), with no access to files beyond ``roots``; ``launches`` are the runs that were started from here.
"""
