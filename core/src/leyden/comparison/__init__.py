"""What `leyden compare` is made of: arms from a configuration, fair fits, tuning, and what is told of them.

`leyden.compare` puts the parts together. Modules that import torch or Lightning are imported in workers only.
"""
