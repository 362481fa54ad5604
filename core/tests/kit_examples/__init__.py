"""Components that keep every promise, and others that break exactly one; what the kit's tests try it on."""
