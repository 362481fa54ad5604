"""What the package contributes to Leyden; imports neither torch nor lightning."""

LEYDEN_API = 1
