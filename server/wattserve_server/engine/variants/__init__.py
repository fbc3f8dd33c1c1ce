"""Variants: one precision of the hosted model each, on a device that runs it natively."""
