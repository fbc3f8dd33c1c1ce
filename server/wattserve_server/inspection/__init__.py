"""The offline room: what the variants of a model do to answers, memory and joules, without a server.

It reads datasets and borrows statistics from `wattserve_loadgen`, so that both mean the same by a row and by
an interval. Of a server, only the reading of calibration data imports it, and only when it is asked for.
"""
