"""What every peer is set to, and how a row of ids comes to those that want equal shapes. Imports nothing."""

BATCH = 32
DELAY_S = 0.002
THREADS = 2

LONGEST = 128
MODEL_NAME = "model"
PAD = 0
