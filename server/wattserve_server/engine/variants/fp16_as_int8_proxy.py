"""fp16-as-int8-proxy: fp16 throughout, under a name that says for what it stands in."""

from __future__ import annotations

from wattserve_server.engine.variants import fp16
from wattserve_server.engine.variants.port import Kind

KIND = Kind(
    "fp16-as-int8-proxy",
    weights=fp16.KIND.weights,
    support=fp16.KIND.support,
    build=fp16.KIND.build,
    proxy="fp16 in place of int8: weights and products are fp16 throughout, nothing is quantised",
)
